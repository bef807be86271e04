NAME = "imports"
