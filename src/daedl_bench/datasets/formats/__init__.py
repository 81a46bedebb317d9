"""Readers of published file formats; the `format` of a dataset in sets.toml names its module here.

Each module has `read(paths)`, which takes the files of a split and returns uint8 images (N, H, W, C) and
integer labels. Files may be damaged or hostile: a reader raises ValueError with the file's path, runs no
code from the file, and allocates memory for the bytes present, not for the sizes announced.
"""
