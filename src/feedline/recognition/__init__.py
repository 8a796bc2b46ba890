"""All code of feedline's that runs in the place of a user's code.

`recognise` looks at a torchvision dataset, `transform_reader` at its transforms, one of the
`steps` at a time; `result` is what was found. `pipeline` makes the rows: `window_crop` the part of
an image, `pixel_lut` the values of its pixels, `transform_tail` the steps that run unchanged.
"""
