"""Images: sources of rows, decoding, crops and resizes.

folder.py, image_list.py, array.py   public sources: `ImageFolder`, `ImageList`, `ImageArray`
rows.py                              from a store of images to rows of a batch
pillow_codecs.py                     all formats except JPEG: add one here; conversion to a mode
codec_registry.py, codec_base.py     `Decoder` of any format, formats added by users; base class
jpeg.py                              decoding of a JPEG, of which only a part if possible
crops.py                             which part of an image becomes a row: `TrainCrop`, `EvalCrop`
resize.py                            resize into a row, mirror, table lookup; rows of raw pixels
canvas.py                            several crops, resizes, pads and flips as one
native.py                            native modules that were not compiled
compile/                             torchvision and timm pipelines
c/                                   native code
"""
