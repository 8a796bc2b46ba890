"""Remote files and caches: read in parts, kept locally, written whole.

`filesystem` opens URLs, reports errors and retries; `folder` reads and writes whole files; `parts`
reads parts of them, many at a time; `location` is a remote cache, `shards` its images,
`local_copies` their local copies; `open_location` finds the location of a cache from a user's path;
`image_files` are remote original images, listed by `class_folders`, fetched by `whole_files` and
kept by `kept_images`.
"""
