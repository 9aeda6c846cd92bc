"""Pages: one file draws each, and ``index`` lists them; questions have a folder of their own."""
