"""Runs vLLM's real model classes and their load_weights on the CPU, for each rank of a tensor-parallel group, and compares
what they hold. Reads jobs, one JSON object a line, from stdin: {"quantized": DIR, "plain": DIR, "tp": N}; answers each with
one line {"ok": ..., "rank": ..., "why": ...}. Ranks are simulated one after the other by a
process group that does nothing. LOADERS_MOE=marlin in the environment asks for those kernels of experts, which pad otherwise."""

import contextlib
import ctypes
import functools
import gc
import os
import subprocess
import tempfile

os.environ.update(VLLM_LOGGING_LEVEL="CRITICAL", HF_HUB_OFFLINE="1", VLLM_NO_USAGE_STATS="1", VLLM_USE_DEEP_GEMM="0")

import stand_ins
import torch
import serve
import values

# vLLM's extension needs a CUDA driver to be loaded; nothing of it is called here.
with tempfile.TemporaryDirectory() as folder:
    source = "".join(f"int {name}(void) {{ return 100; }}\n" for name in (
        "cuGetProcAddress_v2", "cuPointerGetAttribute", "cuTensorMapEncodeTiled"))
    subprocess.run(["gcc", "-shared", "-fPIC", "-Wl,-soname,libcuda.so.1", "-x", "c", "-", "-o", f"{folder}/libcuda.so.1"],
                   input=source, text=True, check=True)
    ctypes.CDLL(f"{folder}/libcuda.so.1", ctypes.RTLD_GLOBAL)
stand_ins.install("vllm.vllm_flash_attn", "cutlass")

import vllm.platforms
from vllm.platforms import cuda
from vllm.platforms.interface import DeviceCapability


class Hopper(cuda.NonNvmlCudaPlatform):
    """Is a platform with the properties of an H100 in the memory of the CPU."""

    @classmethod
    def get_device_capability(cls, device_id=0):
        return DeviceCapability(9, 0)

    @classmethod
    def get_device_name(cls, device_id=0):
        return "NVIDIA H100 80GB HBM3"

    @classmethod
    def get_device_total_memory(cls, device_id=0):
        return 80 << 30

    @classmethod
    def device_count(cls):
        return 8

    @classmethod
    def current_device(cls):
        return torch.device("cpu")

    @classmethod
    def num_compute_units(cls, device_id=0):
        return 132

    @classmethod
    def get_device_communicator_cls(cls):
        return "vllm.distributed.device_communicators.base_device_communicator.DeviceCommunicatorBase"


vllm.platforms._current_platform = Hopper()

from vllm.triton_utils import triton


class Config:
    """Replaces the configuration of a Triton kernel. Lists of them are filtered while modules are imported."""

    def __init__(self, kwargs=None, num_warps=4, num_stages=1, **_):
        self.kwargs, self.num_warps, self.num_stages = kwargs or {}, num_warps, num_stages


triton.Config = Config

import torch.distributed as dist
from torch.overrides import TorchFunctionMode
from torch.testing._internal.distributed.fake_pg import FakeStore
from vllm.config import set_current_vllm_config
from vllm.distributed import parallel_state
from vllm.distributed.device_communicators.shm_broadcast import MessageQueue
from vllm.engine.arg_utils import EngineArgs
from vllm.model_executor.model_loader.default_loader import DefaultModelLoader
from vllm.model_executor.model_loader.utils import initialize_model
from vllm.model_executor.models import registry
from vllm.v1.worker.workspace import init_workspace_manager

registry._LazyRegisteredModel.inspect_model_cls = \
    lambda self: registry._ModelInfo.from_model_cls(self.load_model_cls())
MessageQueue.create_from_process_group = staticmethod(lambda *_, **__: None)
init_workspace_manager(torch.device("cpu"))
new_group = dist.new_group
torch.cuda.Stream = torch.cuda.Event = stand_ins.Anything  # of a device that is not there
torch.distributed.new_group = lambda ranks=None, *_, **__: new_group(ranks, backend="fake")


class OnCpu(TorchFunctionMode):
    """Allocates memory on the CPU that a class requests on "cuda" by name."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if kwargs and torch.device(kwargs.get("device") or "cpu").type == "cuda":
            kwargs = {**kwargs, "device": "cpu"}
        return function(*args, **(kwargs or {}))


@contextlib.contextmanager
def group(tp, rank):
    parallel_state.in_the_same_node_as = lambda *_, **__: [True] * tp
    dist.init_process_group(backend="fake", store=FakeStore(), rank=rank, world_size=tp)
    try:
        yield
    finally:
        parallel_state.destroy_model_parallel()
        parallel_state.destroy_distributed_environment()
        if dist.is_initialized():
            dist.destroy_process_group()
        gc.collect()


def load(path, tp, rank, dtype):
    """Returns ({name: parameter}, the model) after load_weights."""
    with group(tp, rank):
        config = EngineArgs(model=path, tensor_parallel_size=tp, enforce_eager=True, skip_tokenizer_init=True,
                            max_model_len=256, dtype=dtype, load_format="safetensors",
                            distributed_executor_backend="mp", moe_backend=os.environ.get("LOADERS_MOE", "auto")).create_engine_config()
        with set_current_vllm_config(config):
            parallel_state.init_distributed_environment(tp, rank, "env://", 0, "fake")
            parallel_state.initialize_model_parallel(tp, 1, backend="fake")
            before = torch.get_default_dtype()
            torch.set_default_dtype(getattr(torch, dtype))
            try:
                with OnCpu(), values.no_chance():
                    model = initialize_model(config)
            finally:
                torch.set_default_dtype(before)
            values.fill(model, path)
            DefaultModelLoader(config.load_config).load_weights(model, config.model_config)
        return {name: p.data for name, p in model.named_parameters()}, model


def block_of(model):
    def find(name):
        layer = model.get_submodule(name.rpartition(".")[0])
        method = getattr(layer, "quant_method", None)
        shape = getattr(method, "moe_block_shape", None)
        if shape is None or getattr(layer, "moe_block_is_coarse", False):
            shape = getattr(layer, "weight_block_size", None) or getattr(method, "weight_block_size", None)
        return shape or [128, 128]

    return find


@functools.lru_cache(16)
def reference(path, tp, rank):
    return values.dequantize(load(path, tp, rank, "bfloat16")[0], None)


def plain(job, rank):
    mine = reference(job["plain"], job["tp"], rank)
    return values.dealt_out(job, rank, mine) if values.is_gpt_oss(job["quantized"]) else mine


def quantized(job, rank):
    params, model = load(job["quantized"], job["tp"], rank, "bfloat16")
    values.check_inputs(params, values.inputs_of(job["quantized"]))
    return values.dequantize(params, block_of(model), job.get("bits", 8))


serve.main(plain, quantized, ranks=lambda job: job["tp"])
