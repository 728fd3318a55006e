"""What the files of a run directory may hold; a run may come from someone else, so that its files are checked."""

from __future__ import annotations

from lmtransfer.untrusted.schema import COMPONENT, Entries, Fields, Flag, OrNull, Text, Whole

_GROUP = OrNull(Fields())

#: What ``config.yaml`` may hold in the fields that other commands use; components are checked when they are built.
CONFIG = Fields(
    optional={
        **dict.fromkeys(("model", "task", "transfer", "corpus"), OrNull(COMPONENT)),
        **dict.fromkeys(("tokenizer", "train", "hardware", "optimizer", "schedule", "tracker", "phases"), _GROUP),
        "objective": Fields(
            {"losses": Entries(COMPONENT, least=1)},
            optional={"rows": COMPONENT, "corruption": COMPONENT, "max_length": Whole(least=1)},
        ),
        **dict.fromkeys(("name", "init", "run", "tokenizer_from", "data_root", "cache_dir"), OrNull(Text())),
        "source": OrNull(Text()),
        "output_root": Text(),
        "seed": Whole(),
        "seeds": Whole(least=1),
        "control": Flag(),
        "keep_weights": Flag(),
    }
)

#: What ``versions.json`` may hold.
VERSIONS = Fields(optional={"data": Entries(Text())})
