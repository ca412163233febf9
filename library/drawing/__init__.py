"""Drawing: tables of cells as text, TikZ and SVG, and elements of SVG."""
