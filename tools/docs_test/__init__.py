"""Runs every fenced block of the documentation as a reader would: `make docs-test`.

Blocks of one page run from top to bottom, in a directory of the page's own, against a wheel in a fresh virtual
environment. What a page assumes is declared beside the block, in HTML comments that readers do not see:

    <!-- docs-test: skip: REASON -->        not run, for this reason
    <!-- docs-test: needs: docker root -->  not run where one of these is missing
    <!-- docs-test: exit: 1 -->             the exit code of a shell block; 0 otherwise
    <!-- docs-test: until: TEXT -->         interrupt the shell block (Ctrl-C) once its output has this text
    <!-- docs-test: file: recipe.toml -->   write the block to this file
    <!-- docs-test: output -->              compare with the output of the block before; `...` stands for anything
    <!-- docs-test: name: NAME -->          a block that others repeat
    <!-- docs-test: repeat: NAME -->        run the block with this name here, of any page
    <!-- docs-test: page: extras clone -->  of the whole page: with the extras installed; in a copy of the repository;
                                            `engines`: with the image store of `make engines`

A comment whose first line is `docs-test: python` or `docs-test: sh`, with code on its other lines, is a hidden block.
"""
