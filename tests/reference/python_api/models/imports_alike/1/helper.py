NAME = "imports_alike"
