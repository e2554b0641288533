def demo() -> None:
    """x"""


EPILOG = ""
