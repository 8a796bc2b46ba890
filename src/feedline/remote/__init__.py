"""Files on other machines, and caches that lie there: read in parts, kept here, written whole.

`filesystem` what a URL leads to, its errors, and what is tried again; `folder` its files, whole;
`parts` parts of them, many at a time; `location` a cache there, `shards` its images, `local_copies`
what of it is kept on this machine; `open_location` from what a user calls a cache to where it lies;
`image_files` original images there, which `class_folders` finds, `whole_files` fetches and
`kept_images` keeps.
"""
