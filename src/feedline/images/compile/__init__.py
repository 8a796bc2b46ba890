"""Transform compiler: fused replacements of torchvision and timm pipelines and TensorDatasets.

`recognise` inspects a torchvision dataset: `folders` unwraps Subsets and ConcatDatasets, `samples`
reads its file list, `transform_reader` its transform, one of the `steps` at a time, and
`library_code` checks library versions and replaced code; `recognised_transform` is the result.
`pipeline` makes rows and samples, `views_pipeline` several views of an image: `window_crop` and
`view_crops` place the parts of it, `pixel_lut` gives the values of its pixels, `transform_tail`
runs the remaining steps. `compiled` and `views` do the same for any dataset, from a path, bytes or
an image (`given`). `tensors` indexes small TensorDatasets.
"""
