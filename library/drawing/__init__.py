"""What is drawn: tables of cells as text, TikZ and SVG, and the elements of SVG that pictures are made of."""
