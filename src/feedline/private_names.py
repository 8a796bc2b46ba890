"""Private names of other libraries that feedline uses, and the versions that have them.

Guarantees: the only list of them. `tests/test_private_names.py` fails if `src` uses a private name
that is not listed, or if an installed library lacks a listed one. If a version lacks a name, its
fallback applies, or an error states the name, the versions and the fix. Imports no library at
import; workers of image rows use names of Pillow and Python only.
"""

from __future__ import annotations

import pkgutil
import platform
from typing import Any, NamedTuple

from feedline.errors import UsageError


class PrivateName(NamedTuple):
    """A private name.

    Attributes:
        name: dotted path from its module; of an attribute of instances, the path of the class.
        versions: oldest and newest version of the library that were checked.
        fallback: behaviour if a version lacks it; "" if an error is raised.
    """

    name: str
    versions: str
    fallback: str = ""

    @property
    def library(self) -> str:
        """Name of the distribution, or "Python"."""
        top = self.name.partition(".")[0]
        return _LIBRARIES.get(top, top)


_LIBRARIES = {
    "PIL": "Pillow",
    **dict.fromkeys(("_thread", "_winapi", "multiprocessing", "subprocess", "sys"), "Python"),
}

TESTED_VERSIONS = {"PIL": "10.2 to 13.0", "timm": "1.0", "torchvision": "0.17 to 0.29"}
"""Oldest and newest version of each library whose transforms are compiled that was tested."""

_ITERATOR = "torch.utils.data.dataloader._MultiProcessingDataLoaderIter"
_PILLOW = TESTED_VERSIONS["PIL"]
_PYTHON = "3.10 to 3.13"
_TORCH = "2.2 to 2.15"
_TORCHVISION = TESTED_VERSIONS["torchvision"]
_UNCOMPILED = "transforms of this version are not compiled"
_TORCH_PICKLES = "torch pickles tensors of subclasses"

PRIVATE_NAMES: tuple[PrivateName, ...] = (
    # Batches like those of torch's DataLoader.
    PrivateName("torch.utils.data._utils.collate", _TORCH),
    PrivateName("torch.utils.data._utils.pin_memory", _TORCH),
    PrivateName("torch.utils.data._utils.worker", _TORCH),
    PrivateName("torch.utils.data._utils.worker._worker_info", _TORCH),
    PrivateName("torch.utils.data.dataloader.DataLoader._auto_collation", _TORCH),
    PrivateName("torch.utils.data.dataloader.DataLoader._index_sampler", _TORCH),
    PrivateName("torch.utils.data.dataloader.DataLoader._iterator", _TORCH),
    PrivateName("torch._C.DisableTorchFunctionSubclass", _TORCH, _TORCH_PICKLES),
    PrivateName("torch._tensor._rebuild_from_type_v2", _TORCH, _TORCH_PICKLES),
    PrivateName("torch._utils._get_obj_state", _TORCH, _TORCH_PICKLES),
    PrivateName("torch.Tensor._indices", _TORCH),
    PrivateName("torch.Tensor._values", _TORCH),
    PrivateName("torch._utils.KeyErrorMessage", _TORCH, "its lines are printed in one"),
    PrivateName("torch.storage.UntypedStorage._shared_decref", _TORCH),
    PrivateName("torch.storage.UntypedStorage._shared_incref", _TORCH),
    # Recognised by frameworks and profilers.
    PrivateName("torch.utils.data.dataloader._BaseDataLoaderIter", _TORCH),
    PrivateName("torch.autograd._profiler_enabled", _TORCH, "no profiler entries"),
    # Torch's own iterators: the engine of IterableDatasets, and records of torch's loaders.
    PrivateName("torch.utils.data._DatasetKind", _TORCH, "no stage times"),
    PrivateName(f"{_ITERATOR}._dataset_fetcher", _TORCH, "no stage times"),
    PrivateName(f"{_ITERATOR}._in_order", "2.6 to 2.15", "True"),
    PrivateName(f"{_ITERATOR}._rcvd_idx", _TORCH, "errors do not name the worker"),
    PrivateName(f"{_ITERATOR}._shutdown_workers", _TORCH, "workers end with the iterator"),
    PrivateName(f"{_ITERATOR}._task_info", _TORCH, "errors do not name the worker"),
    PrivateName(f"{_ITERATOR}._workers", _TORCH, "no records of workers"),
    # Pixels.
    PrivateName("torch._C._nn._upsample_bicubic2d_aa", _TORCH),
    PrivateName("torch._C._nn._upsample_bilinear2d_aa", _TORCH),
    PrivateName("torch.nn.Module._forward_hooks", _TORCH),
    PrivateName("torch.nn.Module._forward_pre_hooks", _TORCH),
    PrivateName("torch.nn.modules.module._global_forward_hooks", _TORCH),
    PrivateName("torch.nn.modules.module._global_forward_pre_hooks", _TORCH),
    PrivateName("torch.nn.Module._call_impl", _TORCH, "replaced methods are not found"),
    PrivateName("torch.nn.Module._wrapped_call_impl", _TORCH, "replaced methods are not found"),
    *(
        PrivateName(f"torchvision.transforms.{name}", _TORCHVISION, _UNCOMPILED)
        for name in (
            "_functional_pil",
            "_functional_tensor",
            "autoaugment._apply_op",
            "autoaugment.AutoAugment._augmentation_space",
            "v2._augment._BaseMixUpCutMix",
            "v2._auto_augment._AutoAugmentBase._apply_image_or_video_transform",
            "v2._transform",
            "v2._utils",
            "v2.functional._color",
            "v2.functional._geometry",
            "v2.functional._misc",
            "v2.functional._type_conversion",
            "v2.functional._utils",
        )
    ),
    PrivateName("torchvision.transforms.v2.Transform._get_params", "0.17 to 0.20", "make_params"),
    PrivateName("torchvision.transforms.v2.Transform._transform", "0.17 to 0.20", "transform"),
    PrivateName("timm.data.dataset.ImageDataset._max_retries", "1.0", "its default"),
    PrivateName("timm.data.loader._worker_init", "1.0", "counts as user code"),
    PrivateName("PIL._imaging", _PILLOW),
    PrivateName("PIL._webp", _PILLOW, "Pillow decodes WebP whole"),
    PrivateName("PIL.ImageEnhance._Enhance", _PILLOW, _UNCOMPILED),
    PrivateName("PIL.Image.Image._im", "11.1 to 13.0"),  # see `lazy_images`
    PrivateName("PIL.Image.Image._new", _PILLOW),
    PrivateName("PIL.ImageFile.ImageFile._close_exclusive_fp_after_loading", _PILLOW),
    PrivateName("PIL.ImageFile.ImageFile._exclusive_fp", _PILLOW),
    # A loop over a loader in `torch.compile`.
    *(
        PrivateName(name, "2.7 to 2.15", "torch.compile traces the loader")
        for name in (
            "torch._C._dynamo.eval_frame",
            "torch._C._dynamo.eval_frame._FrameAction",
            "torch._C._dynamo.eval_frame._FrameExecStrategy",
            "torch._dynamo.eval_frame.DisableContext._torchdynamo_disable",
            "torch._dynamo.eval_frame.DisableContext._torchdynamo_disable_msg",
        )
    ),
    # Ranks, tuning and training.
    PrivateName("torch.distributed.distributed_c10d._get_default_store", _TORCH),
    PrivateName("torch.utils._pytree", _TORCH),
    PrivateName("torch.nn.Module._buffers", _TORCH),
    PrivateName("torch.nn.Module._parameters", _TORCH),
    PrivateName("torch._dynamo.config", _TORCH),
    PrivateName("torch._dynamo.eval_frame.OptimizedModule._orig_mod", _TORCH, "not unwrapped"),
    # Worker processes like multiprocessing's.
    PrivateName("multiprocessing.process._ParentProcess", _PYTHON),
    PrivateName("multiprocessing.process._ParentProcess._sentinel", _PYTHON, "join() fails"),
    PrivateName("multiprocessing.process._children", _PYTHON),
    PrivateName("multiprocessing.process._current_process", _PYTHON),
    PrivateName("multiprocessing.process._parent_process", _PYTHON),
    PrivateName("multiprocessing.resource_tracker._resource_tracker._fd", _PYTHON),
    PrivateName("multiprocessing.spawn._inheriting", _PYTHON, "a loader is not recognised"),
    PrivateName("multiprocessing.util._finalizer_registry", _PYTHON),
    PrivateName("multiprocessing.util._run_after_forkers", _PYTHON),
    PrivateName("subprocess._args_from_interpreter_flags", _PYTHON),
    PrivateName("sys._is_gil_enabled", "3.13", "True"),
    PrivateName("_thread.RLock._is_owned", _PYTHON),
    PrivateName("_winapi.PeekNamedPipe", _PYTHON),
    # Other libraries.
    PrivateName("numpy.random.mtrand._rand", "2.4"),
    PrivateName("numpy.random.RandomState._bit_generator", "2.4"),
    PrivateName("numpy.random.BitGenerator._seed_seq", "1.24 to 2.4", "seed_seq, from 1.25 on"),
    PrivateName("fsspec.AbstractFileSystem._strip_protocol", "2026.9"),
    PrivateName("fsspec.asyn.AsyncFileSystem._cat_file", "2026.9"),
    PrivateName("accelerate.state.GradientState._add_dataloader", "1.15"),
    PrivateName("accelerate.state.GradientState._remove_dataloader", "1.15"),
    PrivateName("ray._private.services", "2.60", "Ray searches for its cluster"),
)


def find_private(name: str) -> Any:
    """Return the object with a name of `PRIVATE_NAMES`, importing its module.

    Raises:
        UsageError: the installed version lacks it.
    """
    try:
        return pkgutil.resolve_name(name)
    except (ImportError, AttributeError) as error:
        from importlib import metadata

        listed = next(each for each in PRIVATE_NAMES if each.name == name)
        library = listed.library
        version = platform.python_version() if library == "Python" else metadata.version(library)
        raise UsageError(
            f"{library} {version} has no {name}, which feedline uses; {library} "
            f"{listed.versions} have it",
            hint=f"install {library} {listed.versions}, or a newer feedline",
        ) from error
