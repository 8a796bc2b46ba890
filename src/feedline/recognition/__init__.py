"""All code of feedline's that runs in the place of a user's code.

`recognise` looks at a torchvision dataset and says what it found: `folders` takes Subsets and
ConcatDatasets off it, `samples` looks at its files, `transform_reader` at its transform, one of the
`steps` at a time, `replacements` at whether code of torchvision's was replaced:
`recognised_transform` is what it read. `pipeline` makes rows and samples, `views_pipeline` several
views of an image: `window_crop` and `view_crops` place the parts of it, `pixel_lut` gives the
values of its pixels, `transform_tail` runs the steps that are left. `compiled` and `views` make the
same for any dataset, of a path, bytes or an image (`given`), by pipelines that were recognised
before (`fused`). `tensors` indexes small TensorDatasets, also in the Subsets that `subsets` takes
off.
"""
