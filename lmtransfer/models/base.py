"""The interface of all encoders.

Shape legend: T tokens of a packed batch, N output positions, D width, B sequences.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_module_registration_hook,
    register_module_parameter_registration_hook,
)
from torch.overrides import TorchFunctionMode

from lmtransfer.config.types import Count, SmallCount
from lmtransfer.data.batch import PackedBatch
from lmtransfer.errors import ConfigError, DataError
from lmtransfer.models.layers.char_cnn import CharacterCnn

#: The tokens on which the state of a token depends: all tokens ("bidirectional"), itself and the tokens before it
#: ("causal"), itself and the tokens after it ("backward"), or only itself ("none": static word vectors). With
#: "concatenated" (ELMo), a causal half is followed by a backward half of the same width.
Direction = Literal["bidirectional", "causal", "backward", "concatenated", "none"]


@dataclass(frozen=True, slots=True)
class FamilyHead:
    """How a family's published classifier reads the last layer of a sequence.

    Attributes:
        hidden_activation: activation of a new dense layer, as wide as the encoder, before the output layer; None for
            no such layer.
    """

    token: Literal["first", "last", "mean"]
    uses_pooler: bool = False
    hidden_activation: Literal["tanh", "gelu", "relu"] | None = None


@dataclass(frozen=True, slots=True)
class OutputPositions:
    """The positions at which the last layer is needed; an encoder may skip all other positions there.

    Attributes:
        counts: number of these positions in each of the B sequences.
    """

    positions_N: Tensor
    counts: tuple[int, ...]

    @classmethod
    def of(cls, positions_N: np.ndarray, cu_seqlens: np.ndarray) -> OutputPositions:
        """Create an instance from ascending positions and the offsets of the batch (numpy arrays on the host)."""
        edges = np.searchsorted(positions_N, cu_seqlens)
        return cls(torch.from_numpy(positions_N.astype(np.int64)), tuple(int(n) for n in np.diff(edges)))

    def to(self, device: torch.device | str) -> OutputPositions:
        """Return the same positions on ``device``."""
        return OutputPositions(self.positions_N.to(device, non_blocking=True), self.counts)


@dataclass(frozen=True, slots=True)
class EncoderOutput:
    """The output of an encoder.

    Attributes:
        layers: ``num_layers + 1`` tensors of shape (T, D); layer 0 is the embedding layer. With ``output_positions``,
            the last tensor contains only these positions, (N, D).
        recurrent_state: state for the next contiguous batch (LSTM state or Transformer-XL memory), or None.
    """

    layers: tuple[Tensor, ...]
    recurrent_state: Any = None

    @property
    def last(self) -> Tensor:
        """The output of the last layer."""
        return self.layers[-1]


class Encoder(nn.Module):
    """A text encoder over packed batches: the base class of every model.

    A subclass sets ``attention`` and ``family_head``, passes its sizes to ``__init__``, defines ``forward``, and has a
    ``token_embedding``: a submodule, a property, or None. The other attributes and methods are optional.

    Args:
        dim: width D of every layer.
        num_layers: number of layers above the embedding layer.
        max_length: maximum length of a sequence in tokens.
        num_segments: number of segment embeddings.

    Attributes:
        attention: which tokens a token may see, unless the batch states this for each row; see ``attend``.
        attentions: the values that ``attend`` can set, starting with the class's default; empty if ``attention`` cannot
            be changed.
        token_embedding: the input embedding, which objectives may tie; None if the encoder reads words as characters.
        pooler: the family's published pooler of the [CLS] state, a module (B, D) -> (B, D), or None.
        reads_characters: whether the encoder reads words as characters, ``PackedBatch.chars_TC``.
        reads_padded: whether the encoder can read ``models.padded.PaddedRows`` with the same results as packed
            sequences, as an exported graph requires.
        compiles: whether ``models.execution.compile_blocks`` may compile the encoder's blocks.
        has_two_streams: whether the encoder defines ``two_stream``.
    """

    attention: Direction
    attentions: tuple[Direction, ...] = ()
    family_head: FamilyHead
    pooler: nn.Module | None
    reads_characters: bool = False
    reads_padded: bool = False
    compiles: bool = False
    has_two_streams: bool = False

    def __init__(
        self, *, dim: Count, num_layers: SmallCount, max_length: Count, vocab_size: Count, num_segments: SmallCount = 1
    ) -> None:
        super().__init__()
        self.dim, self.num_layers, self.max_length = dim, num_layers, max_length
        self.vocab_size, self.num_segments = vocab_size, num_segments
        self.pooler = None  # set on the instance: a class attribute would hide a submodule of this name

    if TYPE_CHECKING:  # a property at run time would hide a submodule of this name

        @property
        def token_embedding(self) -> nn.Embedding | None:
            """The input embedding, or None."""

        def __call__(
            self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
        ) -> EncoderOutput:
            """Call ``forward``."""

    def forward(
        self, batch: PackedBatch, recurrent_state: Any = None, output_positions: OutputPositions | None = None
    ) -> EncoderOutput:
        """Encode a batch.

        Args:
            recurrent_state: state returned by the pass over the previous batch, which this pass continues; None for no
                state.
            output_positions: the positions at which the last layer is needed; None for all.
        """
        raise NotImplementedError

    def attend(self, attention: Direction) -> None:
        """Set which tokens a token may see from now on; the weights do not depend on this setting."""
        if attention != self.attention and attention not in self.attentions:
            supported = " or ".join(self.attentions or (self.attention,))
            raise ConfigError(f"{type(self).__name__} supports {supported} attention, not {attention} attention")
        self.attention = attention

    @property
    def is_causal(self) -> bool:
        """Whether a token may see only itself and the tokens before it."""
        return self.attention == "causal"

    def check_length(self, batch: PackedBatch) -> None:
        """Reject sequences that are too long, which would otherwise cause an index error deep in a kernel."""
        if batch.max_seqlen > self.max_length:
            raise DataError(
                f"a sequence of {batch.max_seqlen} tokens is longer than model.max_length={self.max_length}: "
                "lower objective.max_length or task.max_length, or raise model.max_length"
            )

    def blocks(self) -> list[nn.Module]:
        """Return the repeated layers, the units of unfreezing, layer-wise learning rates, Muon and ``torch.compile``.

        By default, these are the members of the innermost module lists.
        """
        members = [block for stack in self.modules() if isinstance(stack, nn.ModuleList) for block in stack]
        return [block for block in members if not any(isinstance(part, nn.ModuleList) for part in block.modules())]

    @property
    def word_network(self) -> CharacterCnn | None:
        """The network that computes word vectors from characters; None if the encoder reads token ids."""
        return None

    def generator(self, *, size: float, own_embeddings: bool = False, copied_layers: bool = False) -> Encoder | None:
        """Create a smaller encoder (ELECTRA's generator); None if this encoder cannot create one.

        Args:
            size: width of the generator divided by the width of this encoder, above 0 and at most 1; both have the same
                number of layers.
            own_embeddings: whether the generator gets a copy of the embeddings instead of sharing them.
            copied_layers: whether the layers start as copies of this encoder's layers; otherwise they are random.
        """
        return None

    def two_stream(
        self, batch: PackedBatch, *, order_T: Tensor, output_positions: OutputPositions, recurrent_state: Any = None
    ) -> EncoderOutput:
        """Encode in a factorization order (Yang et al. 2019, section 2.3); only if ``has_two_streams``.

        Args:
            order_T: rank of each token in the order, int64. All tokens see the tokens of rank 0; a token of rank k is
                seen by itself and by tokens of higher rank.
            output_positions: positions of the query stream, which do not see their own tokens.

        Returns:
            All layers of the content stream but the last, (T, D) each; then the last layer of the query stream, (N, D).
        """
        raise NotImplementedError

    def set_memory(self, length: int, *, clamp_length: int | None, same_length: bool) -> None:
        """Change the memory length for an evaluation.

        Args:
            length: maximum number of tokens in the memory, from now on.
            clamp_length: distance to which larger distances are reduced; None for no change.
            same_length: whether each token sees at most ``length`` tokens, itself included, so that the last token of a
                segment has no more context than the first.
        """
        raise ConfigError(
            f"memory_lengths: {type(self).__name__} has no memory; leave memory_lengths out, or choose a run that was "
            "trained with model=transformer_xl_laptop"
        )

    def input_rows(self, token: int, character_ids: np.ndarray | None) -> tuple[nn.Embedding, list[int]] | None:
        """Return the embedding table and the rows of a token in this table, in order; None if there is no table."""
        return None if self.token_embedding is None else (self.token_embedding, [token])


def encoders_in(module: nn.Module) -> list[Encoder]:
    """Return the encoders of a learner, each once, without the encoders inside them."""
    if isinstance(module, Encoder):
        return [module]
    return list(dict.fromkeys(encoder for child in module.children() for encoder in encoders_in(child)))


#: A model may have this many modules and parameters for each saved tensor, and this many besides.
_PARTS_PER_TENSOR, _PARTS_APART = 16, 2_000


@contextmanager
def shapes_only(*, num_saved: int | None = None) -> Iterator[None]:
    """Inside the block, build modules on the meta device: their tensors have names and shapes, but take no memory.

    Args:
        num_saved: number of tensors in the file that the module must match. A file's settings may ask for any number of
            layers, and thousands take minutes to build.

    Raises:
        ValueError: the module has far more parts than the file has tensors.
    """
    count, most = 0, None if num_saved is None else _PARTS_PER_TENSOR * num_saved + _PARTS_APART

    def note(*_: object) -> None:
        nonlocal count
        count += 1
        if most is not None and count > most:
            raise ValueError(f"the model has more than {most:,} parts, but there are only {num_saved:,} tensors")

    hooks = (register_module_module_registration_hook(note), register_module_parameter_registration_hook(note))
    try:
        with torch.device("meta"), _WithoutNormal():
            yield
    finally:
        for hook in hooks:
            hook.remove()


class _WithoutNormal(TorchFunctionMode):
    """Draws no normal values: on the meta device, this would import PyTorch's compiler, which takes a second."""

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in (Tensor.normal_, nn.init.normal_):
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
