from __future__ import annotations

from lmtransfer.launch.command_help import key_comments, leading_comment, summary

TEXT = """\
# @package _global_
# What it is; its source; its cost
# lmtransfer toy a=1

# not of the first block
a: 1  # one
b:
  # two lines
  # above c
  c: "no # comment"
  d: 'x'   # after quotes # and more

  e: http://x#y
# about f
f: [1, 2]  # a list
"""


def test_the_leading_comment_is_the_first_block_without_the_package() -> None:
    assert leading_comment(TEXT) == ["What it is; its source; its cost", "lmtransfer toy a=1"]
    assert summary(TEXT) == "What it is; its source; its cost"
    assert summary("a: 1\n") == ""


def test_comments_belong_to_the_key_of_their_line_or_of_the_next() -> None:
    assert key_comments(TEXT) == {
        "a": "one",
        "b.c": "two lines above c",
        "b.d": "after quotes # and more",
        "f": "a list",
    }
