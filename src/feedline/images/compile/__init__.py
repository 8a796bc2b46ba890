"""Transform compiler: torchvision and timm pipelines and image folders to fused ones.

`compile_dataset` inspects a dataset: `datasets` reads its files and labels out of Subsets and
ConcatDatasets, `compile_transform` its transform, one of the `steps` at a time; `library_code`
checks versions and replaced code. A `fused_transform` places a crop (`crop_geometry`), resizes it
and runs its tail: `pixel_steps` on pixels (`pixel_operations`) and a lookup table. `pipeline` makes
rows and samples of a dataset with it; `views` (`feedline.compile`, `feedline.views`) makes samples
of any image (`image_input`); `compile_pair` and `pair` do the same for images with masks, boxes and
points.
"""
