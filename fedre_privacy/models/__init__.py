"""Models: an extractor (images to representations) and a linear head, for many architectures."""

from .families import (
    FAMILIES,
    ModelSettings,
    architecture_of,
    assemble,
    build_model,
    members_of,
    representation_dim,
)
from .mapping import MAPPINGS, build_mapping
from .parameter_counts import count_parameters
from .split import Normalise, SplitModel, load_parameters, num_parameters, parameters_of
from .zoo import Architecture, architectures

__all__ = [
    "FAMILIES",
    "MAPPINGS",
    "Architecture",
    "ModelSettings",
    "Normalise",
    "SplitModel",
    "architecture_of",
    "architectures",
    "assemble",
    "build_mapping",
    "build_model",
    "count_parameters",
    "load_parameters",
    "members_of",
    "num_parameters",
    "parameters_of",
    "representation_dim",
]
