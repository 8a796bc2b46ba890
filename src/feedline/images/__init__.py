"""Images: sources of rows, decoding, crops and resizes.

folder.py, image_list.py, array.py   public sources: `ImageFolder`, `ImageList`, `ImageArray`
rows.py                              from a store of images to rows of a batch
codec_registry.py, codec_base.py     registry of image formats and `Decoder` of any; base class
pillow_codecs.py                     PNG, WebP, GIF, TIFF and others; conversion to RGB, L or I;16
jpeg.py                              decoding of a JPEG, of which only a part if possible
crops.py                             which part of an image becomes a row: `TrainCrop`, `EvalCrop`
resize.py                            resize into a row, mirror, table lookup; rows of raw pixels
canvas.py                            several crops, resizes, pads and flips as one
compile/                             torchvision and timm pipelines
c/                                   native code
"""
