"""Has no class of the right name."""


class Model:
    def execute(self, requests):
        return []
