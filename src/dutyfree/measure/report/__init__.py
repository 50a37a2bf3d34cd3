"""What a study says, shown: figures, tables, one page, a text. It draws numbers, and computes none of its own."""
