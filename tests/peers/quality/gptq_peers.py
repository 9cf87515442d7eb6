"""GPTQ of llm-compressor and of a short reference, on the layers of a model one after another.

Each layer is quantized with the Hessians of its inputs from the layers before it, which are quantized already, as both
tools do. `oneshot` itself needs a data set and a tokenizer; its steps are called here directly."""

import torch
from compressed_tensors.quantization import ActivationOrdering, QuantizationArgs
from llmcompressor.modifiers.gptq.gptq_quantize import quantize_weight
from llmcompressor.modifiers.gptq.helpers import accumulate_hessian, make_empty_hessian
from llmcompressor.observers import Observer
from llmcompressor.observers.helpers import fuse_weight_observers


def observed(layers, arguments, observer, importance, tokens):
    """Returns scales of each linear layer by an observer of llm-compressor."""
    for name, layer in layers.items():
        layer.weight_observer = Observer.load_from_registry(observer, base_name="weight", args=QuantizationArgs(**arguments, observer=observer))
        if "imatrix" in observer:
            layer.weight_observer._imatrix_sum = importance[name] * tokens
            layer.weight_observer._imatrix_count = torch.tensor(tokens)


class Reached(Exception):
    """Ends a pass before the first decoder layer."""


def inputs_of_first(model, tokens):
    """Returns [(the positional and keyword arguments of the first decoder layer)] of each sequence."""
    kept = []

    def keep(_, args, kwargs):
        kept.append((args, kwargs))
        raise Reached
    hook = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    for row in tokens:
        try:
            model(row[None], use_cache=False)
        except Reached:
            pass
    hook.remove()
    return kept


@torch.no_grad()
def by_layers(model, layers, tokens, quantize):
    """Replaces the weights of `layers` by quantize(name, layer, hessian), decoder layer by decoder layer."""
    calls = inputs_of_first(model, tokens)
    names = {layer: name for name, layer in layers.items()}
    for block in model.model.layers:
        mine = [m for m in block.modules() if m in names]
        sums = {m: (make_empty_hessian(m), torch.zeros(())) for m in mine}

        def add(module, args, _):
            sums[module] = accumulate_hessian(args[0], module, *sums[module])
        hooks = [m.register_forward_hook(add) for m in mine]
        for args, kwargs in calls:
            block(*args, **kwargs)
        for hook in hooks:
            hook.remove()
        for m in mine:
            hessian, count = sums.pop(m)
            m.weight.data = quantize(names[m], m, hessian / count)
        calls = [((block(*args, **kwargs), *args[1:]), kwargs) for args, kwargs in calls]
    return {f"{name}.weight": layer.weight.data.clone() for name, layer in layers.items()}


def llmcompressor(model, layers, weights, arguments, observer, importance, tokens):
    """Returns the weights of GPTQModifier with its default options (static ordering of activations, blocks of 128, damping
    0.01)."""
    for name, layer in layers.items():
        layer.weight.data = weights[f"{name}.weight"].float()
    observed(layers, arguments, observer, importance, tokens.numel())
    fuse_weight_observers(model)
    for layer in layers.values():
        layer.weight_observer(layer.weight)

    def quantize(_, layer, hessian):
        args, found = layer.weight_observer.args.model_copy(), layer.weight_observer.get_qparams()
        args.actorder = ActivationOrdering.STATIC
        shared = found["global_scale"]
        out, _, fallback = quantize_weight(layer.weight.data[None].clone(), hessian[None], found["scale"][None].float(), found["zero_point"][None],
                                           None if shared is None else shared.reshape(-1)[:1], args)
        assert not fallback.any(), "the inversion failed"
        return out[0]
    out = by_layers(model, layers, tokens, quantize)
    for layer in layers.values():
        del layer.weight_observer
    return out


def reference(model, layers, weights, group, symmetric, tokens):
    """Returns the weights of GPTQ as in its paper: int4, columns in order, scales of a group computed when it is reached,
    damping 0.01."""
    for name, layer in layers.items():
        layer.weight.data = weights[f"{name}.weight"].float()

    def quantize(_, layer, hessian):
        w, n = layer.weight.data.double().clone(), hessian.shape[0]
        h = hessian.double() + 0.01 * hessian.diagonal().mean().double() * torch.eye(n, dtype=torch.float64, device=hessian.device)
        u = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
        out = torch.zeros_like(w)
        for j in range(n):
            if j % group == 0:
                part = w[:, j:j + group]
                low, high = part.amin(1).clamp(max=0), part.amax(1).clamp(min=0)
                scale = (high - low) / 15 if not symmetric else torch.maximum(high, -low) / 7.5
                scale = torch.where(scale == 0, 1, scale)
                zero = torch.zeros_like(scale) if symmetric else (-8 - low / scale).round().clamp(-8, 7)
            code = (w[:, j] / scale + zero).round().clamp(-8, 7)
            out[:, j] = (code - zero) * scale
            error = (w[:, j] - out[:, j]) / u[j, j]
            w[:, j:] -= error[:, None] * u[j, j:][None]
        return out.float()
    return by_layers(model, layers, tokens, quantize)
