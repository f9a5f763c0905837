"""A Hugging Face config.json as the oracle's transformer; the calculator runs it too.

Decoder-only transformers alone, and of those the kinds that are read to the last
parameter; any other is refused by its name in one line.
"""

from collections.abc import Mapping
from typing import Any

from atlas.planner.errors import OracleError
from atlas.planner.model import Model
from atlas.planner.transformer import transformer

__all__ = ["hugging_face"]

#: With a perceptron of two matrices, biases, and norms with a bias.
PLAIN = ("gpt2", "gpt_neox", "opt", "gpt_bigcode")
#: Those of them that learn a vector for each place.
PLACED = ("gpt2", "opt", "gpt_bigcode")
#: With a gated perceptron and norms without a bias.
GATED = (
    *("llama", "mistral", "mixtral", "phi3", "smollm3", "olmo2"),
    *("gemma", "gemma2", "gemma3_text"),
    *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
    *("deepseek_v2", "deepseek_v3", "kimi_k2"),
)
#: Those whose head is the embedding's matrix unless their config says otherwise.
TIED = (
    *("gpt2", "opt", "gpt_bigcode"),
    *("gemma", "gemma2", "gemma3_text", "smollm3"),
)
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
    if config.get("is_encoder_decoder"):
        raise OracleError(f"{name}: {kind} has an encoder: expected a decoder alone")
    if kind not in GATED and kind not in PLAIN:
        known = ", ".join([*GATED, *PLAIN])
        raise OracleError(f"{name}: model_type {kind}: expected one of {known}")
    gated = kind in GATED
    width = _number(config, name, ("hidden_size", "n_embd", "d_model"))
    heads = _number(config, name, ("num_attention_heads", "n_head"))
    kv = _optional(config, name, ("num_key_value_heads",)) or heads
    if kind == "gpt_bigcode" and config.get("multi_query", True):
        kv = 1
    longest = _number(
        config, name, ("max_position_embeddings", "n_positions", "seq_length")
    )
    drops = config.get("resid_pdrop") or config.get("hidden_dropout")
    layers = _number(config, name, ("num_hidden_layers", "n_layer"))
    if layers > MOST_LAYERS:
        raise OracleError(f"{name}: {layers} layers: expected at most {MOST_LAYERS}")
    head = _optional(config, name, ("head_dim",))
    given: dict[str, Any] = {
        "layers": layers,
        "width": width,
        "heads": heads,
        "vocabulary": _number(config, name, ("vocab_size",)),
        "tokens": tokens or longest,
        "kv_heads": kv,
        "head": head or None,
        "ffn": _optional(config, name, ("intermediate_size", "n_inner", "ffn_dim"))
        or None,
        "gated": gated,
        "bias": not gated,
        "dropout": bool(drops),
        "norm": 1 if gated else 2,
        "positions": kind in PLACED,
        "tied": bool(config.get("tie_word_embeddings", kind in TIED)),
    }
    given["slanted"] = kind in ("qwen2", "qwen2_moe")
    given["whole"] = _norms(kind, width, heads, kv, head or width // heads)
    _refuse(config, name, kind)
    if _optional(config, name, _EXPERTS) > 0 and kind != "gpt_bigcode":
        given = {**given, **_experts(config, name, kind, width)}
    if _optional(config, name, ("kv_lora_rank",)) > 0:
        given = {**given, **_latent(config, name, heads)}
    return transformer(name, **given)


_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts")


def _norms(kind: str, width: int, heads: int, kv: int, head: int) -> int:
    """Parameters of the norms that a layer has besides its first two."""
    if kind == "gemma2":
        return 2 * width
    if kind == "gemma3_text":
        return 2 * width + 2 * head
    if kind in ("qwen3", "qwen3_moe"):
        return 2 * head
    if kind == "olmo2":
        return (heads + kv) * head
    return 0


def _refuse(config: Mapping[str, Any], name: str, kind: str) -> None:
    """What the config says that the oracle would silently read wrong."""
    for key in ("attention_bias", "mlp_bias"):
        if config.get(key) and kind in GATED:
            raise OracleError(f"{name}: {kind} with {key}: expected one without")
    if config.get("mlp_only_layers"):
        raise OracleError(f"{name}: {kind} with mlp_only_layers: expected none")
    step = config.get("decoder_sparse_step") or config.get("moe_layer_freq") or 1
    if step != 1:
        raise OracleError(f"{name}: {kind} with experts in one of {step} layers alone")
    wide = config.get("word_embed_proj_dim")
    if wide is not None and wide != config.get("hidden_size"):
        raise OracleError(f"{name}: {kind} with embeddings of another width, {wide}")


def _experts(
    config: Mapping[str, Any], name: str, kind: str, width: int
) -> dict[str, Any]:
    """Experts, the perceptron that all tokens pass, and dense first layers."""
    experts = _optional(config, name, _EXPERTS)
    made: dict[str, Any] = {
        "experts": experts,
        "chosen": _optional(config, name, ("num_experts_per_tok",)) or 1,
    }
    each = _optional(config, name, ("moe_intermediate_size",))
    if each > 0:
        made["ffn"] = each
    if kind == "qwen2_moe":
        made["common"] = _optional(config, name, ("shared_expert_intermediate_size",))
        made["whole"] = width  # the gate of the perceptron that all tokens pass
    shared = _optional(config, name, ("n_shared_experts",))
    if shared > 0:
        made["common"] = shared * each
    first = _optional(config, name, ("first_k_dense_replace",))
    if first > 0:
        made["dense"] = first
        made["dense_ffn"] = _number(config, name, ("intermediate_size",))
    if kind in ("deepseek_v3", "kimi_k2"):
        made["whole"] = experts  # what balances the experts
    return made


def _latent(config: Mapping[str, Any], name: str, heads: int) -> dict[str, Any]:
    """Latent attention: every head has keys and values of its own, made of few."""
    return {
        "kv_heads": heads,
        "head": _number(config, name, ("qk_nope_head_dim",)),
        "turned": _number(config, name, ("qk_rope_head_dim",)),
        "value": _number(config, name, ("v_head_dim",)),
        "rank": _number(config, name, ("kv_lora_rank",)),
        "query_rank": _optional(config, name, ("q_lora_rank",)),
    }


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
