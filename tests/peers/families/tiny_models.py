"""Makes a tiny BF16 model of a class of transformers, and reads from the class which stored tensors are linear layers.

Classes and default configurations come from transformers' own mappings. Sizes are made small; names and kinds of layers stay."""

import functools
import shutil
import warnings

import numpy as np
import torch
import transformers

warnings.simplefilter("ignore")
transformers.utils.import_utils.BACKENDS_MAPPING["natten"] = lambda: True, ""  # kernels without weights, which no test runs

# Sizes of configurations, by the names of their members. Whole blocks of 128; heads of 128 columns.
SMALL = dict(
    hidden_size=256, d_model=256, n_embd=256, dim=256, embed_dim=256, width=256, embedding_size=256,
    intermediate_size=512, ffn_dim=512, d_ff=512, n_inner=512, encoder_ffn_dim=512, decoder_ffn_dim=512, mlp_dim=512,
    moe_intermediate_size=256, shared_expert_intermediate_size=256, intermediate_size_mlp=512, shared_intermediate_size=256,
    num_hidden_layers=2, num_layers=2, n_layer=2, n_layers=2, encoder_layers=2, decoder_layers=2, depth=2, num_decoder_layers=2,
    num_attention_heads=2, n_head=2, n_heads=2, num_heads=2, encoder_attention_heads=2, decoder_attention_heads=2,
    num_key_value_heads=2, head_dim=128, global_head_dim=128, d_kv=128, attention_head_dim=128,
    vocab_size=512, max_position_embeddings=128, n_positions=128, n_ctx=128, vocab_size_per_layer_input=512,
    num_experts=4, num_local_experts=4, n_routed_experts=4, moe_num_experts=4, num_experts_per_tok=2, moe_topk=2, moe_k=2,
    n_shared_experts=1, moe_num_shared_experts=1, first_k_dense_replace=1, n_group=1, topk_group=1,
    q_lora_rank=128, kv_lora_rank=128, qk_nope_head_dim=128, qk_rope_head_dim=128, v_head_dim=128,
    linear_num_key_heads=2, linear_num_value_heads=2, linear_key_head_dim=128, linear_value_head_dim=128,
    image_size=56, patch_size=14, projection_dim=256, out_hidden_size=256, num_mel_bins=16, max_source_positions=32,
    hidden_size_per_layer_input=32, num_nextn_predict_layers=0, num_mtp_layers=0, index_n_heads=2, index_head_dim=128,
    mamba_n_heads=4, mamba_d_head=128, mamba_d_state=16, mamba_n_groups=1, ssm_state_size=16)
AT_MOST = ("num_nextn_predict_layers", "num_mtp_layers", "n_shared_experts", "moe_num_shared_experts", "num_experts_per_tok")
LISTS = ("layer_types", "mlp_layer_types", "layers_block_type", "block_types", "hybrid_layer_ids")
LARGEST = 200_000_000  # parameters; a default that did not shrink

# The auto class is the first of these that has the model type, or another.
AUTO_CLASSES = ("AutoModelForCausalLM", "AutoModelForImageTextToText", "AutoModelForMultimodalLM", "AutoModelForSeq2SeqLM",
                "AutoModelForSpeechSeq2Seq", "AutoModelForCTC", "AutoModelForMaskedLM", "AutoModel")
OTHER_AUTO_CLASSES = [*sorted(name for name in dir(transformers) if name.startswith("AutoModelFor") and name not in AUTO_CLASSES), "AutoBackbone"]


# Attempts to make a model small, by the sizes that change. Some classes accept only their own proportions.
DEPTH = ("num_hidden_layers", "num_layers", "n_layer", "n_layers", "encoder_layers", "decoder_layers", "depth", "num_decoder_layers",
         "vocab_size", "vocab_size_per_layer_input", "num_experts", "num_local_experts", "n_routed_experts", "moe_num_experts",
         "num_experts_per_tok", "num_nextn_predict_layers", "num_mtp_layers", "first_k_dense_replace", "n_group", "topk_group")
ATTEMPTS = (SMALL, {key: SMALL[key] for key in DEPTH}, {})
OF_STAGES = ("out_features", "out_indices", "stage_names")  # derived from the number of layers
IF_UNSET = ("head_dim", "num_key_value_heads", "n_routed_experts", "vocab_size")  # some classes cannot compute with None
# Values of several types in OF_TYPE
BY_LAYER_TYPE = {kind: {"rope_type": "default", "rope_theta": 10000.0} for kind in ("full_attention", "sliding_attention")}
QWEN4_INDEXER = {"indexer_n_heads": 2, "indexer_kv_heads": 1, "indexer_head_dim": 128, "indexer_budget": 64, "indexer_compress_ratio": 4}
WAYS = {"vertical_long_to_small_conv": lambda size: [[size, 1], 1, [size // 2, 0]], "symmetric_conv_long": lambda size: [size, 1, size // 2],
        "horizontal_small_to_long_conv": lambda size: [[1, size], 1, [0, size // 2]]}
INTRACLASS = {"intraclass_block_config": {"reduce_channel": [1, 1, 0], "return_channel": [1, 1, 0]} | {
    f"{name}_{ratio}ratio": way(size) for name, way in WAYS.items() for ratio, size in (("long", 7), ("mid", 5), ("short", 3))},
    "scale_factor_list": [1, 2, 4, 8], "kernel_list": [3, 2, 2]}
# Members that a class relates to others, or that its default configuration lacks. A plain name is set in the configuration and in its
# text part, a name with dots in one part.
OF_TYPE = {
    "apertus1p5": {"audio_config.codebook_dim": 256, "audio_config.codebook_size": 64, "vision_config.codebook_size": 64,
                   "image_token_offset": 128, "audio_token_offset": 192},
    "autoformer": {"prediction_length": 24},
    "blt": {"encoder_hash_byte_group_vocab": 512},
    "chameleon": {"vocabulary_map": {"<image>": 4}},
    "cohere_compass": {"text_config.rope_parameters": BY_LAYER_TYPE},
    "cohere_compass_text": {"rope_parameters": BY_LAYER_TYPE},
    "csm": {"codec_config.upsample_groups": 256},
    "dbrx": {"attn_config.rope_theta": 10000.0, "ffn_config.ffn_hidden_size": 256},
    "deepseek_ocr2": {"text_config.num_experts_per_tok": 2, "text_config.mlp_layer_types": ["dense", "sparse"]},
    "diffusion_gemma": {"text_config.num_experts": 4, "text_config.moe_intermediate_size": 256, "text_config.top_k_experts": 2},
    "dory": {"num_hidden_layers": 6, "n_input_layers": 2, "n_recurrent_layers": 2, "n_output_layers": 2,
             "layer_types": ["sliding_attention", "mlp", "full_attention", "mlp", "full_attention", "mlp"]},
    "dots1": {"n_shared_experts": 1, "num_experts_per_tok": 2},
    "dots3_note": {"text_config.head_dim": 256, "vision_config.adapter_in_dim": 256, "vision_config.adapter_out_dim": 256,
                   "audio_config.adapter_input_size": 256, "audio_config.adapter_out_dim": 256},
    "dots3_note_text": {"head_dim": 256},
    "falcon_h1": {"mamba_d_ssm": 512},
    "gemma3n": {"text_config.num_kv_shared_layers": 0, "vision_config.model_args": {"channel_multiplier": 0.25}},
    "gemma3n_text": {"num_kv_shared_layers": 0},
    "gemma3n_vision": {"model_args": {"channel_multiplier": 0.25}},
    "gemma4_assistant": {"text_config.num_kv_shared_layers": 2, "text_config.hidden_size_per_layer_input": 0,
                         "text_config.vocab_size_per_layer_input": 0},
    "gemma4_unified_assistant": {"text_config.num_kv_shared_layers": 2},
    "glm5_next": {"qk_rope_head_dim": 0},
    "glm5_next_text": {"qk_rope_head_dim": 0},
    "granite4_vision": {"downsample_rate": "1/2", "deepstack_layer_map": [[-1, 0]]},
    "hy_v4_vl": {"text_config.qk_rope_head_dim": 64},
    "hy_v4_vl_text": {"qk_rope_head_dim": 64},
    "informer": {"prediction_length": 24},
    "inkling2": {"vision_config.text_hidden_size": 256, "text_config.unpadded_vocab_size": 512},
    "inkling2_loop": {"vision_config.text_hidden_size": 256, "text_config.unpadded_vocab_size": 512},
    "inkling2_loop_text": {"unpadded_vocab_size": 512},
    "inkling2_text": {"unpadded_vocab_size": 512},
    "kyutai_speech_to_text": {"codec_config.upsample_groups": 256},
    "lfm2_moe": {"layer_types": ["conv", "full_attention"]},
    "longcat_flash": {"expert_ffn_hidden_size": 256, "ffn_hidden_size": 512, "zero_expert_num": 0},
    "mamba2": {"num_heads": 4, "head_dim": 128},
    "molmo2": {"adapter_config.vision_feature_layer": [1, 0], "adapter_config.text_hidden_size": 256},
    "moonshine_streaming": {"num_key_value_heads": 2},
    "pe_audio_video": {"audio_video_config.video_config.vision_config.architecture": "vit_pe_core_tiny_patch16_384"},
    "pe_audio_video_encoder": {"video_config.vision_config.architecture": "vit_pe_core_tiny_patch16_384"},
    "pe_video": {"video_config.vision_config.architecture": "vit_pe_core_tiny_patch16_384"},
    "pe_video_encoder": {"vision_config.architecture": "vit_pe_core_tiny_patch16_384"},
    "perception_lm": {"vision_config.architecture": "vit_pe_core_tiny_patch16_384", "vision_config.model_args": {"embed_dim": 192}},
    "perceiver": {"num_self_attends_per_block": 2, "num_self_attention_heads": 2, "num_cross_attention_heads": 2, "d_latents": 256},
    "pp_ocrv5_server_det": INTRACLASS,
    "pp_ocrv6_medium_det": INTRACLASS,
    "qwen3_omni_moe": {"talker_config.text_config.shared_expert_intermediate_size": 256, "talker_config.spatial_merge_size": 2},
    "qwen4_exp": {"text_config." + key: value for key, value in QWEN4_INDEXER.items()},
    "qwen4_exp_text": QWEN4_INDEXER,
    "reformer": {"is_decoder": True},
    "t5gemma2_encoder": {"text_config.dropout_rate": 0.0},
    "time_series_transformer": {"prediction_length": 24},
    "timm_backbone": {"backbone": "resnet18"},
    "timm_wrapper": {"architecture": "resnet18"},
    "vibevoice": {"audio_config.num_filters": 4, "semantic_model_config.num_filters": 4},
    "vibevoice_acoustic_tokenizer": {"num_filters": 4},
    "vibevoice_acoustic_tokenizer_encoder": {"num_filters": 4},
    "vibevoice_asr": {"acoustic_tokenizer_encoder_config.num_filters": 4, "semantic_tokenizer_encoder_config.num_filters": 4},
    "zamba": {"attention_hidden_size": 512, "num_hidden_layers": 3, "layers_block_type": ["linear_attention", "hybrid", "hybrid"]},
}
# Arguments of configurations whose defaults their class refuses.
GIVEN = {"gemma4_assistant": {"text_config": {"hidden_size_per_layer_input": 0, "vocab_size_per_layer_input": 0, "num_kv_shared_layers": 30}}}
# Auto classes of model types for which the first of AUTO_CLASSES is a class of another configuration.
AUTO_OF_TYPE = {"musicgen": "AutoModelForTextToWaveform", "musicgen_melody": "AutoModelForTextToWaveform",
                "shieldgemma2": "AutoModelForImageClassification"}
# Files beside the weights that a class reads.
FILES = {"qwen2_5_omni": {"spk_dict.pt": {}}}


def shorten(values):
    """Returns two entries of a list with one for each layer, of two kinds if there are two."""
    kinds = list(dict.fromkeys(values)) if isinstance(values[0], str) else []
    return [kinds[0], kinds[-1]] if kinds else values[:2]


def shrink(values, sizes):
    """Returns the members of a configuration with small sizes, at each depth."""
    small = {}
    layers = next((values[key] for key in DEPTH[:8] if isinstance(values.get(key), int) and key in sizes), None)
    for key, value in values.items():
        if key in ("id2label", "label2id") or (sizes and key in OF_STAGES):
            continue
        if key == "per_layer_config" and isinstance(value, dict) and layers:
            small[key] = {index: shrink(entry, sizes) for index, entry in value.items() if int(index) < 2}
        elif isinstance(value, dict) and "rope" not in key:
            small[key] = shrink(value, sizes)
        elif key in sizes and isinstance(value, int) and not isinstance(value, bool):
            small[key] = min(value, sizes[key]) if key in AT_MOST else sizes[key]
        elif key in IF_UNSET and key in sizes and value is None:
            small[key] = sizes[key]
        elif isinstance(value, list) and len(value) > 2 and sizes and (key in LISTS or len(value) == layers):
            small[key] = shorten(value)
        elif str(key).endswith("token_id") and isinstance(value, int):
            small[key] = min(value, 7)
        else:
            small[key] = value
    return small


def set_members(values, members):
    for name, value in members.items():
        *parents, key = name.split(".")
        parts = [values, values.get("text_config") or {}] if not parents else [functools.reduce(lambda part, step: part[step], parents, values)]
        for part in parts:
            part[key] = value


def build(model_type, sizes):
    """Returns a model with random weights. Raises if its class does not accept these sizes, or it is too large."""
    config_class = transformers.CONFIG_MAPPING[model_type]
    values = shrink(config_class(**GIVEN.get(model_type, {})).to_dict(), sizes)
    if sizes:
        set_members(values, OF_TYPE.get(model_type, {}))
    for key in ("model_type", "transformers_version", "architectures", "dtype"):
        values.pop(key, None)
    config = config_class.from_dict(values)
    names = [AUTO_OF_TYPE[model_type]] if model_type in AUTO_OF_TYPE else [*AUTO_CLASSES, *OTHER_AUTO_CLASSES]
    autos = [getattr(transformers, name) for name in names if hasattr(transformers, name)]
    auto = next((auto for auto in autos if type(config) in auto._model_mapping), None)
    if auto is None:
        raise NoClass("no class of its own: a part of other models")
    with torch.device("meta"):
        size = sum(p.numel() for p in auto.from_config(config).parameters())
    if size > LARGEST:
        raise ValueError(f"{size} parameters")
    torch.manual_seed(1)
    model = auto.from_config(config, dtype=torch.bfloat16).eval()
    for p in model.parameters():
        if p.dim() > 1:
            torch.nn.init.normal_(p, std=0.05)
    for module in model.modules():  # some classes clear this row whenever they load
        if isinstance(module, torch.nn.Embedding) and module.padding_idx is not None:
            module.weight.data[module.padding_idx] = 0
    return model


class NoClass(Exception):
    pass


def make(model_type, folder):
    """Saves a tiny model and returns it. Raises if the class cannot be made small or does not read what it saved."""
    failed = None
    for sizes in ATTEMPTS:
        shutil.rmtree(folder, ignore_errors=True)
        try:
            model = build(model_type, sizes)
            model.save_pretrained(folder)
            for name, value in FILES.get(model_type, {}).items():
                torch.save(value, folder / name)
            wrong = difference(dict(type(model).from_pretrained(str(folder), dtype=torch.bfloat16).named_parameters()),
                               dict(model.named_parameters()), 0)
            if not wrong:
                return model
            raise ValueError(f"the class does not read what it saved: {wrong}")
        except NoClass:
            raise
        except Exception as e:
            failed = failed or e
    raise failed


def difference(mine, right, limit):
    """Returns the first parameter that differs from the saved one, with its error, or None."""
    for name, x in right.items():
        if name not in mine or mine[name].shape != x.shape:
            return f"{name} is {'missing' if name not in mine else list(mine[name].shape)}"
        error = (mine[name].float() - x.float()).norm() / x.float().norm().clamp(min=1e-30)
        if not error <= limit:
            return f"{name}: relative error {float(error):.3g}"
    return None


INTEGERS = {torch.bfloat16: torch.int16, torch.float32: torch.int32}


def bits(tensor):
    return tensor.detach().contiguous().view(INTEGERS[tensor.dtype]).numpy()


class LayerKinds:
    """Finds the module that a stored matrix belongs to, by the bits of one row.

    transformers renames, joins, splits, stacks and transposes tensors while it saves, so names do not suffice."""

    def __init__(self, model):
        self.kinds = {}
        head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
        for module_name, module in model.named_modules():
            for name, p in module.named_parameters(recurse=False):
                if p.dim() < 2 or p.dtype not in INTEGERS or (p.dtype == torch.float32 and p.dim() > 2):
                    continue
                rows = bits(p.reshape(-1, p.shape[-1]))
                kind = self.kind_of(module, name, p, module is head, module_name)
                for row in rows:
                    self.kinds.setdefault(row.tobytes(), kind)
                if p.dim() == 3:  # a stack may be stored transposed
                    for matrix in p:
                        for column in bits(matrix.T):
                            self.kinds.setdefault(column.tobytes(), kind)

    @staticmethod
    def kind_of(module, name, p, is_head, module_name):
        class_name = type(module).__name__
        if is_head:
            return "head"
        if isinstance(module, torch.nn.Linear):
            return "linear"
        if p.dim() == 3 and "expert" in (class_name + module_name).lower():
            return "experts"
        return class_name

    def find(self, tensor):
        """Returns "linear", "experts", "head", the name of another class, or None for a vector or an unknown tensor."""
        if tensor.dim() < 2 or tensor.dtype not in INTEGERS or tensor.numel() == 0:
            return None
        matrix = bits(tensor.reshape(-1, tensor.shape[-1]))
        for line in (matrix[0], np.ascontiguousarray(bits(tensor.reshape(-1, *tensor.shape[-2:])[0].T)[0])):
            kind = self.kinds.get(line.tobytes())
            if kind is not None:
                return kind
        return None
