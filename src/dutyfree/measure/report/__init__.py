"""Shows the analysis of a study: figures, tables, a page, a text. It computes no numbers itself."""
