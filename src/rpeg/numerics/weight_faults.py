"""What keeps weights from replacing those of a sampler, whichever engine it has."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from rpeg.errors import Fault, ModelError

__all__ = ["check_weights"]


def check_weights(
    weights: Mapping[str, Tensor], version: int, shapes: Mapping[str, Sequence[int]], needed: Iterable[str]
) -> None:
    """Refuse weights that are not those of the sampler's model.

    Args:
        weights: by name.
        version: of the weights.
        shapes: of all that may be among them; a tied weight has several names.
        needed: of all that must be; a tied weight once.

    Raises:
        ModelError: with every name that is missing, unknown or of another shape.
    """
    faults = [Fault(name, "is missing among the weights") for name in sorted(set(needed) - weights.keys())]
    faults += [Fault(name, "is not in the sampler's model") for name in sorted(weights.keys() - shapes.keys())]
    for name in sorted(weights.keys() & shapes.keys()):
        if (given := tuple(weights[name].shape)) != (wanted := tuple(shapes[name])):
            faults.append(Fault(name, f"has shape {given}, but {wanted} in the sampler's model"))
    if faults:
        raise ModelError(f"weights of version {version}", faults)
