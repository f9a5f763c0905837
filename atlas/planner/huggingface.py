"""A Hugging Face config.json as the oracle's transformer; the calculator runs it too.

Decoder-only transformers alone: what the oracle cannot lower to its layers, latent
attention or an encoder, is refused in one line.
"""

from collections.abc import Mapping
from typing import Any

from atlas.planner.errors import OracleError
from atlas.planner.model import Model
from atlas.planner.transformer import transformer

__all__ = ["hugging_face"]

#: Model types with a perceptron of two matrices, biases and norms with a bias.
PLAIN = ("gpt2", "gpt_neo", "gpt_neox", "gptj", "opt", "bloom", "gpt_bigcode")
#: Those of them that learn a vector for each place.
PLACED = ("gpt2", "gpt_neo", "opt", "gpt_bigcode")
#: Far beyond any model; a slip of the keyboard should not be computed for hours.
MOST = 10_000_000
MOST_LAYERS = 10_000


def hugging_face(config: Mapping[str, Any], name: str, tokens: int | None) -> Model:
    """The model that a config.json describes, for sequences of so many tokens.

    Without tokens: as long as the config allows.
    """
    if "text_config" in config:
        config = config["text_config"]
    kind = str(config.get("model_type") or "unknown")
    gated = "rms_norm_eps" in config
    if config.get("is_encoder_decoder"):
        raise OracleError(f"{name}: {kind} has an encoder: expected a decoder alone")
    if "kv_lora_rank" in config:
        raise OracleError(f"{name}: {kind} has latent attention: not in the oracle")
    if not gated and kind not in PLAIN:
        known = ", ".join(PLAIN)
        raise OracleError(
            f"{name}: model_type {kind}: expected one with rms_norm_eps, or {known}"
        )
    heads = _number(config, name, ("num_attention_heads", "n_head"))
    longest = _number(config, name, ("max_position_embeddings", "n_positions"))
    experts = _optional(
        config, name, ("num_local_experts", "num_experts", "n_routed_experts")
    )
    ffn = _optional(config, name, ("intermediate_size", "n_inner", "ffn_dim"))
    if experts > 0 and config.get("moe_intermediate_size"):
        ffn = _optional(config, name, ("moe_intermediate_size",))
    drops = config.get("resid_pdrop") or config.get("hidden_dropout")
    layers = _number(config, name, ("num_hidden_layers", "n_layer"))
    if layers > MOST_LAYERS:
        raise OracleError(f"{name}: {layers} layers: expected at most {MOST_LAYERS}")
    return transformer(
        name,
        layers=layers,
        width=_number(config, name, ("hidden_size", "n_embd", "d_model")),
        heads=heads,
        vocabulary=_number(config, name, ("vocab_size",)),
        tokens=tokens or longest,
        kv_heads=_optional(config, name, ("num_key_value_heads",)) or heads,
        head=_optional(config, name, ("head_dim",)) or None,
        ffn=ffn or None,
        gated=gated,
        bias=not gated,
        dropout=bool(drops),
        norm=1 if gated else 2,
        positions=kind in PLACED,
        tied=bool(config.get("tie_word_embeddings", not gated)),
        experts=experts,
        chosen=_optional(config, name, ("num_experts_per_tok",)) or 1,
    )


def _number(config: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> int:
    """The first of these keys that the config has."""
    found = _optional(config, name, keys)
    if found < 1:
        raise OracleError(f"{name}: expected {' or '.join(keys)} of 1 or more")
    return found


def _optional(config: Mapping[str, Any], name: str, keys: tuple[str, ...]) -> int:
    """Likewise; 0 where it has none of them."""
    for key in keys:
        value = config.get(key)
        if value is None:
            continue
        if isinstance(value, bool) or not isinstance(value, int):
            raise OracleError(f"{name}: {key} is {value}: expected a whole number")
        if value < 0 or value > MOST:
            raise OracleError(f"{name}: {key} is {value}: expected 0 to {MOST}")
        return int(value)
    return 0
