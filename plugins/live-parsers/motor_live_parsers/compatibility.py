"""Whether the installed vLLM is one whose streaming derender this plugin has been checked against."""

import hashlib
import importlib
import inspect
from collections.abc import Mapping
from functools import reduce

_SUPPORTED_RELEASES = ("0.32.",)

# SHA-256 of the source of everything that the plugin patches, calls with stand-ins, or relies on, by module and name.
_FINGERPRINTS: Mapping[tuple[str, str], str] = {
    ("vllm.renderers.online_derenderer", "OnlineDerenderer.__init__"): (
        "02ae711b1aa4f495370b4f224870678ccbcc4a5cc62e46b3a3a060430eaee98f"
    ),
    ("vllm.renderers.online_derenderer", "OnlineDerenderer.derender_chat_stream"): (
        "1c4c5a557d8f159b626805b0a8edbbeea52ec97fd17be8511dd55b72388c1742"
    ),
    ("vllm.renderers.online_derenderer", "OnlineDerenderer._derender_chat_stream_parsed"): (
        "7bd5d86106776d14a21dcb9f4f6f8c96b8b4ce29b80b4a70814c34952eb85621"
    ),
    ("vllm.renderers.online_derenderer", "OnlineDerenderer._detokenize_delta"): (
        "cd7f3aff3be29e86338fbef5436c10c0632b50b9192a8d425d6a8bd4faf92305"
    ),
    ("vllm.renderers.online_derenderer", "OnlineDerenderer._resolve_chat_template_kwargs"): (
        "f36f31d4a1ea682238d52dfd533ddc5fdb668067eda53cce5e38630646b16c6f"
    ),
    ("vllm.renderers.online_derenderer", "_seed_stream_state"): (
        "6dcda2d34bbe9ec1cb34c4e4473b429a6b4d8cff0829617b572de3987b5977a2"
    ),
    ("vllm.renderers.online_derenderer", "_decode_params"): (
        "701e6eb6aebc33d11516709cb7e554933642f913d3ea131d6fee026d602be2b2"
    ),
    ("vllm.entrypoints.scale_out.derender.serving", "ServingDerender.derender_chat_stream_response"): (
        "01dc4e694283d8a2b8870bdf7c6f8c02afb72550f26bd14b92a46486ac9d54ed"
    ),
    ("vllm.entrypoints.scale_out.token_in_token_out.protocol", "DerenderStreamState"): (
        "a9bd3f61bb08d9834bcb624161bb61a19c8424924bfd207df26770b34e1145d5"
    ),
    ("vllm.entrypoints.scale_out.token_in_token_out.protocol", "DerenderChatStreamRequest"): (
        "204c9e2429d4c1a446bc6c1e7d6c44f463db6d9c6385702b661e45e949402641"
    ),
    ("vllm.entrypoints.scale_out.token_in_token_out.protocol", "DerenderChatStreamResponse"): (
        "64f48cce1fc4ad42408b2b82b46bc162daa2f10a25b3e50e574fffccb57405ec"
    ),
    ("vllm.entrypoints.scale_out.token_in_token_out.protocol", "GenerateTokensStreamResponse"): (
        "4cf29975802ff5105a3ec1eb2577681ff7350de51875a729e1b04476d7e8a858"
    ),
    ("vllm.entrypoints.scale_out.derender.api_router", "derender"): (
        "efc63b35515bc1e14aee269572027f3906225d967b3cc4700aef1a193a4e6fb6"
    ),
    ("vllm.entrypoints.scale_out.derender.api_router", "derender_chat_completion"): (
        "564fbf3a3fcce54fedd5a4ddaf130c8b6a73f0fc60be1a73af9e1ff6ac5fb181"
    ),
    ("vllm.parser.abstract_parser", "Parser"): ("e106b5814faa39aad5077008660e4b6a9c05f931c5acb9257991ec5b5169fd04"),
    ("vllm.parser.abstract_parser", "DelegatingParser.parse_delta"): (
        "aececd9fa246ba70020f91d10463c9f1dec486145ce9195996c7a1316bd4aed3"
    ),
    ("vllm.parser.engine.parser_engine", "ParserEngine.parse_delta"): (
        "fdc4acab64504c0e39312ffef21e440849b97f609d195a328fcb7d8bb5e06a51"
    ),
}


def find_incompatibility(fingerprints: Mapping[tuple[str, str], str] = _FINGERPRINTS) -> str | None:
    """Say what is not as it was when the plugin was written, or None if all is."""
    import vllm

    if not vllm.__version__.startswith(_SUPPORTED_RELEASES):
        return f"vLLM {vllm.__version__} is not one of {', '.join(_SUPPORTED_RELEASES)}x"
    for (module_name, qualified_name), expected in fingerprints.items():
        try:
            actual = fingerprint(module_name, qualified_name)
        except (ImportError, AttributeError, OSError, TypeError) as error:
            return f"the source of {module_name}.{qualified_name} can't be read: {error}"
        if actual != expected:
            return f"{module_name}.{qualified_name} differs from the one that was checked"
    return None


def fingerprint(module_name: str, qualified_name: str) -> str:
    """SHA-256 of the source of a class or function.

    Raises:
        ImportError: No such module.
        AttributeError: No such name in it.
        OSError: The source is not there.
        TypeError: The name is not a class or function.
    """
    found: object = reduce(getattr, qualified_name.split("."), importlib.import_module(module_name))
    return hashlib.sha256(inspect.getsource(found).encode()).hexdigest()  # type: ignore[arg-type]
