"""Transform compiler: torchvision and timm pipelines and image folders to fused ones.

compile_dataset.py         a dataset's files, labels and transform; datasets.py Subsets and others
compile_pipeline.py        a pipeline: its crops, resizes and values
supported_transforms.py    colour, blur, geometry and policies, on pixels
library_steps.py           unmodified steps of the libraries
wrappers.py                objects that only call a pipeline
self_check.py              fused pipelines compared with their steps, with untested versions
fused_transform.py         a compiled pipeline, and several views
pipeline.py                rows and samples of a compiled dataset
views.py                   `feedline.compile` and `feedline.views`; image_input.py their inputs
pair.py, compile_pair.py   the same for images with masks, boxes and points
"""
