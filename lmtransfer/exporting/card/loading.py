"""The loading example of a model card: Python code that loads the export with its own library."""

from __future__ import annotations

from lmtransfer.exporting.adapter_folder import BASE
from lmtransfer.exporting.card.settings import CardSettings
from lmtransfer.exporting.run import OpenRun
from lmtransfer.exporting.seen_by_transformers import auto_class


def loading_example(run: OpenRun, *, library: str, architecture: str, settings: CardSettings) -> str:
    """Write the code that loads the export.

    Args:
        run: the exported run.
        library: library that loads the export; see ``card_of``.
        architecture: class in transformers; empty if there is none.
        settings: where the export is.
    """
    place = settings.loaded_from
    if library == "sentence-transformers":
        return (
            "from sentence_transformers import SentenceTransformer\n\n"
            f"model = SentenceTransformer({place})\n"
            'vectors = model.encode(["One text.", "Another, longer text."])'
        )
    if architecture:
        auto = auto_class(architecture)
        model, peft = f"{auto}.from_pretrained({place}).eval()", ""
        if library == "peft":
            on_base = f"{auto}.from_pretrained({_base(settings)}, num_labels={len(run.head['output.bias'])})"
            model = f"{on_base}\nmodel = PeftModel.from_pretrained(model, {place}).eval()"
            peft = "from peft import PeftModel\n"
        two = (
            '["Who wrote it?"], ["A poet wrote it."]'
            if run.kind == "span"
            else '["One text.", "Another, longer text."]'
        )
        return (
            f"{peft}from transformers import {auto}, AutoTokenizer\n\n"
            f"tokenizer = AutoTokenizer.from_pretrained({place})\n"
            f"model = {model}\n"
            f'output = model(**tokenizer({two}, padding=True, return_tensors="pt"))'
        )
    imports, folder = "", place
    if settings.on_hub:
        imports, folder = "from huggingface_hub import snapshot_download\n", f"snapshot_download({place})"
    if library == "onnx":
        return (
            f"import onnxruntime\n{imports}from transformers import AutoTokenizer\n\n"
            f"folder = {folder}\n"
            "tokenizer = AutoTokenizer.from_pretrained(folder)\n"
            'session = onnxruntime.InferenceSession(f"{folder}/model.onnx")\n'
            'fed = tokenizer(["One text.", "Another, longer text."], padding=True, return_tensors="np")\n'
            "output = session.run(None, {wanted.name: fed[wanted.name] for wanted in session.get_inputs()})"
        )
    vocabulary = "load_tokenizer(folder / 'tokenizer').vocab_size"
    return (
        "from pathlib import Path\n\n"
        "import yaml\n"
        f"{imports}from safetensors.torch import load_file\n\n"
        "from lmtransfer.config.component import build\n"
        "from lmtransfer.tokenizers.load import load_tokenizer\n"
        "from lmtransfer.training.weights import load_weights\n\n"
        f"folder = Path({folder})\n"
        "model = yaml.safe_load((folder / 'model.yaml').read_text())['model']\n"
        f"encoder = build(model, vocab_size={vocabulary})\n"
        "tensors = load_file(folder / 'model.safetensors')\n"
        "own = {name.removeprefix('encoder.'): t for name, t in tensors.items() if name.startswith('encoder.')}\n"
        "load_weights(encoder, own)"
    )


def _base(settings: CardSettings) -> str:
    """Where the loading example finds the base of an adapter, as Python arguments."""
    if settings.base is not None:
        return f'"{settings.base}"'
    if settings.on_hub:
        return f'{settings.loaded_from}, subfolder="{BASE}"'
    return f'{settings.loaded_from[:-1]}/{BASE}"'
