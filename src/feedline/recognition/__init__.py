"""All code of feedline's that runs in the place of a user's code.

`recognise` looks at a torchvision dataset and says what it found: `folders` takes Subsets and
ConcatDatasets off it, `samples` looks at its files, `transform_reader` at its transform, one of the
`steps` at a time, `originals` at whether code of torchvision's was replaced. `pipeline` makes rows
and samples: `window_crop` places the part of an image, `pixel_lut` gives the values of its pixels,
`transform_tail` runs the steps that are left. `tensors` indexes small TensorDatasets, also in the
Subsets that `subsets` takes off.
"""
