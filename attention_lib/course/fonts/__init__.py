"""A small font with the Chinese characters of the book's figures.

``CourseCJK-Regular.otf`` is a subset of Noto Sans CJK SC under the SIL Open
Font License (``OFL.txt``), so that figures look the same on every machine.
"""
