"""Sample stores: bytes and labels of images, wherever they are.

store.py            protocol and base class of all stores; arrays of paths
folder.py           folders with one sub-folder per class
tables.py           lists, CSV and Parquet files, DataFrames
archives.py         zip and tar files
webdataset.py       tar shards
lmdb_store.py       LMDBs
  lmdb_reader.py      open LMDBs, and reading of one in another process
rows.py             Hugging Face datasets and Parquet files with images
arrays.py           decoded images
remote_images.py    image files at URLs
column_types.py     columns of tables as lists; conversion of labels to one array
cache_store.py      caches of resized copies; remote_cache.py those at URLs
  manifest.py         files of a cache, its manifest and the columns of its samples
  cache_formats.py    tar, LMDB and plain files; cache_format_base.py their interface
  cache_folder.py     one builder at a time; removal of files that a cache wrote, and of no others
files.py            safe reading and atomic writing of local files
remote_filesystem.py   fsspec filesystem of a URL: requests, retries, errors
  remote_files.py     files of a folder at a URL
  remote_reader.py    ranges of files at URLs, and the images in them
  local_copies.py     copies of remote files on the local disk
"""
