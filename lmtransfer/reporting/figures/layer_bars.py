"""The weights of a learned scalar mix of layers, as bars."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from lmtransfer.reporting.figures.style import (
    GREY,
    INK,
    SavedFigure,
    colour,
    drawing,
    new_figure,
    save,
    seed_dots,
    shorten,
    subtitle,
)
from lmtransfer.reporting.runs.entry import Entry
from lmtransfer.reporting.runs.layer_weights import LayerWeights, read_layer_weights

#: Highest number of runs side by side; more could not be distinguished, and are omitted.
_MOST = 6


def layer_figures(entries: Sequence[Entry], labels: Mapping[str, str], folder: Path) -> list[SavedFigure]:
    """One figure for each task and number of layers, with all runs that learned a scalar mix side by side."""
    groups: dict[tuple[str, int], list[LayerWeights]] = {}
    for entry in entries:
        name = labels[entry.run.key]
        results = [(entry.run.result, name, entry.is_control, entry.seeds)]
        control = entry.run.result.get("control") or {}
        results.append((control, f"{name} control", True, entry.controls))
        for result, label, is_control, seeds in results:
            found = read_layer_weights(result, label, is_control=is_control, seeds=[seed.result for seed in seeds])
            if found is not None:
                groups.setdefault((entry.group, len(found.weights)), []).append(found)
    return [
        draw_layer_weights(visible[:_MOST], folder, name=f"layers-{number}", title=f"{group}: weight of each layer")
        for number, ((group, _), visible) in enumerate(groups.items(), start=1)
    ]


def draw_layer_weights(mixtures: Sequence[LayerWeights], folder: Path, *, name: str, title: str) -> SavedFigure:
    """Draw bars by layer and run, with deviation and dots over seeds; a dashed line at equal weights."""
    num_layers = len(mixtures[0].weights)
    width = 0.8 / len(mixtures)
    with drawing(name):
        figure = new_figure(
            title, width=max(5.2, 1.9 + 0.75 * num_layers + 0.16 * num_layers * len(mixtures)), height=3.6
        )
        axes = figure.subplots()
        coloured = iter(range(len(mixtures)))
        for place, mixture in enumerate(mixtures):
            ink = GREY if mixture.is_control else colour(next(coloured))
            xs = [layer + (place - (len(mixtures) - 1) / 2) * width for layer in range(num_layers)]
            label = f"{shorten(mixture.label)}  (gamma {mixture.gamma:.2f})"
            axes.bar(xs, mixture.weights, width=0.9 * width, color=ink, label=label)
            if mixture.deviations is not None:
                axes.errorbar(
                    xs, mixture.weights, yerr=mixture.deviations, fmt="none", color=INK, elinewidth=1, capsize=2
                )
            for of_seed in mixture.seeds if len(mixture.seeds) > 1 else ():
                seed_dots(axes, xs, of_seed, INK, size=3)
            if len(mixtures) == 1:
                tops = mixture.deviations or (0.0,) * num_layers
                for x, weight, more in zip(xs, mixture.weights, tops, strict=True):
                    axes.annotate(
                        f"{weight:.2f}", (x, weight + more), xytext=(0, 3), textcoords="offset points", ha="center",
                        fontsize=8,
                    )  # fmt: skip
        axes.axhline(1 / num_layers, color=INK, linewidth=0.9, linestyle=(0, (4, 3)), zorder=0.5)
        axes.annotate(
            "equal weights", (1.0, 1 / num_layers), xycoords=("axes fraction", "data"), xytext=(4, 0),
            textcoords="offset points", va="center", fontsize=8, color="#666666",
        )  # fmt: skip
        axes.set_xticks(range(num_layers), ["embeddings", *(f"layer {n}" for n in range(1, num_layers))])
        axes.set_xlim(-0.6, num_layers - 0.4)
        axes.grid(visible=False, axis="x")
        axes.set_ylabel("softmax weight")
        axes.margins(y=0.15)
        if any(mixture.deviations is not None for mixture in mixtures):
            subtitle(axes, "mean and deviation over seeds, dots: seeds")
        figure.legend(loc="outside lower left", frameon=False, fontsize=8.5, ncols=2 if len(mixtures) > 1 else 1)
        return save(figure, folder, name, title)
