import typer

app = typer.Typer()


@app.callback()
def log() -> None:
    """Offline."""
