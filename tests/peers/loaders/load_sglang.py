"""The same for SGLang (see load_vllm.py): its real model classes and their load_weights, for each rank, on the CPU."""

import contextlib
import functools
import gc
import os
from pathlib import Path

os.environ.update(HF_HUB_OFFLINE="1", SGLANG_DISABLE_TELEMETRY="1",
                  SGLANG_OPT_USE_TILELANG_MHC_PRE="0")  # or DeepSeek-V4 compiles kernels when all is loaded

import stand_ins
import torch
import serve
import values

stand_ins.install("sgl_kernel", "triton_kernels", "flashinfer", "deep_gemm", "cuda", "cutlass", "tilelang", "quack")

import logging

import torch.distributed as dist
from sglang.srt import runtime_context, utils
from sglang.srt.arg_groups import mamba_hook
from sglang.srt.configs.load_config import LoadConfig
from sglang.srt.configs.model_config import ModelConfig
from sglang.srt.distributed import parallel_state
from sglang.srt.layers import quantization
from sglang.srt.layers.moe import initialize_moe_config
from sglang.srt.model_loader import loader
from sglang.srt.server_args import ServerArgs
from torch.testing._internal.distributed.fake_pg import FakeStore

from sglang.srt.distributed.device_communicators import pynccl, shm_broadcast


def no_nccl(self, *_, **__):
    self.disabled, self.available, self.world_size = True, False, 1


pynccl.PyNcclCommunicator.__init__ = no_nccl
mamba_hook._platform_supports_mamba_cache_extra_buffer = lambda: True
utils.get_device = lambda *_, **__: "cpu"  # which its generic class for models of transformers asks for
torch.cuda.current_device = lambda: torch.device("cpu")
torch.cuda.get_device_capability = lambda *_, **__: (9, 0)  # which schemes ask for
shm_broadcast.MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
parallel_state.create_global_tcp_store = lambda *_, **__: None
quantization.BASE_QUANTIZATION_METHODS["mxfp4"] = quantization.QUANTIZATION_METHODS["mxfp4"] = quantization.Mxfp4Config  # as with CUDA
logging.disable(logging.CRITICAL)
new_group = dist.new_group
torch.distributed.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")


@contextlib.contextmanager
def group(args, tp, rank):
    runtime_context.publish(args, role="scheduler", ranks=runtime_context.SpawnRanks(world_rank=rank, dp_rank=None, gpu_id=0))
    dist.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=tp)
    try:
        parallel_state.init_distributed_environment(tp, rank, "env://", 0, "fake")
        parallel_state.initialize_model_parallel(backend="fake")
        yield
    finally:
        with contextlib.suppress(Exception):
            parallel_state.destroy_model_parallel()
        with contextlib.suppress(Exception):
            parallel_state.destroy_distributed_environment()
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()


def attention(path):
    """Returns an attention backend. gpt-oss and EXAONE support only a few."""
    return "triton" if values.config_of(path)["model_type"] in ("gpt_oss", "exaone_moe") else "torch_native"


def backend(path):
    """Returns a backend of experts. ModelOpt's NVFP4 experts need a Blackwell GPU or Marlin's kernels; the file is read in
    the same way."""
    return "marlin" if '"modelopt"' in Path(path, "config.json").read_text() else os.environ.get("LOADERS_MOE", "auto")


def load(path, tp, rank):
    args = ServerArgs(model_path=path, tp_size=tp, device="cpu", dtype="bfloat16", skip_tokenizer_init=True,
                      attention_backend=attention(path), disable_cuda_graph=True, moe_runner_backend=backend(path))
    with group(args, tp, rank):
        initialize_moe_config()
        config = ModelConfig.from_server_args(args)
        how = LoadConfig(load_format="safetensors")
        quantization = loader._get_quantization_config(config, how)
        with loader.set_default_torch_dtype(config.dtype), torch.device("cpu"):
            with values.no_chance():
                model = loader._initialize_model(config, how, quantization)
            values.fill(model, path)
            model.load_weights(loader.DefaultModelLoader(how)._get_all_weights(config, model))
        return {name: p.data for name, p in model.named_parameters()}, model


def block_of(model):
    def find(name):
        method = getattr(model.get_submodule(name.rpartition(".")[0]), "quant_method", None)
        config = getattr(method, "quant_config", None)
        return getattr(config, "weight_block_size", None) or [128, 128]

    return find


@functools.lru_cache(16)
def reference(path, tp, rank):
    return values.dequantize(load(path, tp, rank)[0], None)


def plain(job, rank):
    mine = reference(job["plain"], job["tp"], rank)
    if values.is_gpt_oss(job["quantized"]):
        return values.dealt_out(job, rank, mine)
    config = values.config_of(job["quantized"])
    method = config["quantization_config"].get("quant_method")
    return whole_experts(job, rank, mine) if config["model_type"] == "mixtral" and method in ("modelopt", "mxfp8") else mine


def whole_experts(job, rank, sliced):
    """Returns true if each rank has some complete experts: in ModelOpt's dialect and with the method mxfp8, SGLang's Mixtral
    is another class."""
    stored = values.stored_in(job["plain"])
    experts = {int(name.split(".experts.")[1].split(".")[0]) for name in stored if ".experts." in name}
    mine = torch.tensor(sorted(experts)).tensor_split(job["tp"])[rank].tolist()
    return {**{name: t for name, t in sliced.items() if ".experts." not in name},
            **{name: t for name, t in stored.items() if any(f".experts.{e}." in name for e in mine)}}


def quantized(job, rank):
    params, model = load(job["quantized"], job["tp"], rank)
    # Where inputs are quantized as they come, a scale of them is left out with a warning.
    if values.config_of(job["quantized"])["quantization_config"].get("activation_scheme") != "dynamic":
        values.check_inputs(params, values.inputs_of(job["quantized"]))
    return values.dequantize(params, block_of(model), job.get("bits", 8))


serve.main(plain, quantized, ranks=lambda job: job["tp"])
