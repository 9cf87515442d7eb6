"""GPTQ as in its paper, on the layers of a model one after another.

Each layer is quantized with the Hessians of its inputs from the layers before it, which are quantized already. An expert's
inputs are the tokens that its router sends to it."""

import torch


class Reached(Exception):
    """Ends a pass before the first decoder layer."""


def inputs_of_first(model, tokens):
    """Returns [(the positional and keyword arguments of the first decoder layer)] of each batch of sequences."""
    kept = []

    def keep(_, args, kwargs):
        kept.append((args, kwargs))
        raise Reached
    hook = model.model.layers[0].register_forward_pre_hook(keep, with_kwargs=True)
    for part in tokens.split(8):
        try:
            model(part, use_cache=False)
        except Reached:
            pass
    hook.remove()
    return kept


def hessians(block, calls):
    """Returns {linear layer: the sum of x xᵀ over its inputs}."""
    sums = {m: torch.zeros(m.in_features, m.in_features, device=m.weight.device, dtype=torch.float64)
            for m in block.modules() if isinstance(m, torch.nn.Linear)}

    def add(module, args, _):
        x = args[0].flatten(0, -2).double()
        sums[module] += x.T @ x
    hooks = [m.register_forward_hook(add) for m in sums]
    for args, kwargs in calls:
        block(*args, **kwargs)
    for hook in hooks:
        hook.remove()
    return sums


@torch.no_grad()
def quantized(model, group, symmetric, tokens):
    """Rounds the weights of a model to int4, decoder layer by decoder layer."""
    calls = inputs_of_first(model, tokens)
    for block in model.model.layers:
        found, shapes = hessians(block, calls), {}
        for m in found:
            shapes.setdefault(m.weight.shape, []).append(m)
        for layers in shapes.values():
            out = rounded(torch.stack([m.weight.double() for m in layers]), torch.stack([found[m] for m in layers]), group, symmetric)
            for m, w in zip(layers, out):
                m.weight.data = w.float()
        calls = [((block(*args, **kwargs), *args[1:]), kwargs) for args, kwargs in calls]
    return model


def rounded(w, h, group, symmetric):
    """Returns weights [layers, rows, columns]: columns in order, scales of a group computed when it is reached, damping 0.01.

    A column whose input is always 0 gets a diagonal of 1, so an expert without tokens is rounded to nearest."""
    diagonal = h.diagonal(dim1=1, dim2=2)
    diagonal += (diagonal == 0) + 0.01 * diagonal.mean(1, keepdim=True)
    u = torch.linalg.cholesky(torch.cholesky_inverse(torch.linalg.cholesky(h)), upper=True)
    out = torch.zeros_like(w)
    for j in range(w.shape[2]):
        if j % group == 0:
            part = w[:, :, j:j + group]
            low, high = part.amin(2).clamp(max=0), part.amax(2).clamp(min=0)
            scale = (high - low) / 15 if not symmetric else torch.maximum(high, -low) / 7.5
            scale = torch.where(scale == 0, 1, scale)
            zero = torch.zeros_like(scale) if symmetric else (-8 - low / scale).round().clamp(-8, 7)
        code = (w[:, :, j] / scale + zero).round().clamp(-8, 7)
        out[:, :, j] = (code - zero) * scale
        error = (w[:, :, j] - out[:, :, j]) / u[:, j, j, None]
        w[:, :, j:] -= error[:, :, None] * u[:, None, j, j:]
    return out
