"""A server with OpenAI's and Anthropic's dialects (`powerinfer serve`), on starlette and uvicorn.

One direction of dependencies: app -> dialects (openai, responses, messages) -> chats -> texts ->
queues -> the engine.
"""

from .app import build_app
from .settings import Settings

__all__ = ["Settings", "build_app"]
