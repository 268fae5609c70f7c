"""The public names of llama-cpp-python 0.3.36, by module; `Llama`: those of an open instance."""

from __future__ import annotations

NAMES = {
    "Llama": """
        cache chat_format chat_handler close context_params create_chat_completion
        create_chat_completion_openai_v1 create_completion create_embedding ctx detokenize
        draft_model embed eval eval_logits eval_tokens from_pretrained generate input_ids
        kv_overrides last_n_tokens_size load_state logits_to_logprobs longest_token_prefix
        lora_base lora_path lora_scale metadata model model_params model_path n_batch n_ctx
        n_embd n_threads n_threads_batch n_tokens n_vocab numa pooling_type reset sample
        save_state scores set_cache set_seed spm_infill tensor_split token_bos token_eos
        token_nl tokenize tokenizer tokenizer_ verbose
    """,
    "llama": """
        BaseLlamaCache BaseLlamaTokenizer Llama LlamaCache LlamaDiskCache LlamaDraftModel
        LlamaGrammar LlamaRAMCache LlamaState LlamaTokenizer LogitsProcessorList
        MinTokensLogitsProcessor StoppingCriteriaList set_verbose suppress_stdout_stderr
    """,
    "llama_cache": """
        BaseLlamaCache LlamaCache LlamaDiskCache LlamaRAMCache
    """,
    "llama_chat_format": """
        CHATML_BOS_TOKEN CHATML_CHAT_TEMPLATE CHATML_EOS_TOKEN ChatFormatter
        ChatFormatterResponse Gemma4ChatHandler Jinja2ChatFormatter
        LLAMA3_INSTRUCT_CHAT_TEMPLATE Llama3VisionAlpha Llama3VisionAlphaChatHandler
        LlamaChatCompletionHandler LlamaChatCompletionHandlerNotFoundException
        LlamaChatCompletionHandlerRegistry Llava15ChatHandler Llava16ChatHandler
        MISTRAL_INSTRUCT_BOS_TOKEN MISTRAL_INSTRUCT_CHAT_TEMPLATE MISTRAL_INSTRUCT_EOS_TOKEN
        MIXTRAL_INSTRUCT_CHAT_TEMPLATE MTMDChatHandler MiniCPMv26ChatHandler
        MoondreamChatHandler NanoLlavaChatHandler ObsidianChatHandler Qwen25VLChatHandler
        chat_formatter_to_chat_completion_handler chatml_function_calling format format_alpaca
        format_baichuan format_baichuan2 format_chatglm3 format_chatml format_gemma
        format_intel format_llama2 format_llama3 format_mistral_instruct format_mistrallite
        format_oasst_llama format_open_orca format_openbuddy format_openchat format_phind
        format_pygmalion format_qwen format_redpajama_incite format_saiga format_snoozy
        format_zephyr functionary_chat_handler functionary_v1_v2_chat_handler
        get_chat_completion_handler guess_chat_format_from_gguf_metadata
        hf_autotokenizer_to_chat_completion_handler hf_autotokenizer_to_chat_formatter
        hf_tokenizer_config_to_chat_completion_handler hf_tokenizer_config_to_chat_formatter
        register_chat_completion_handler register_chat_format
    """,
    "llama_grammar": """
        ARITHMETIC_GBNF BuiltinRule CHESS_GBNF C_GBNF DOT DOTALL
        ESCAPED_IN_REGEXPS_BUT_NOT_IN_LITERALS GRAMMAR_LITERAL_ESCAPES JAPANESE_GBNF
        JSON_ARR_GBNF JSON_GBNF LIST_GBNF LLAMA_GRAMMAR_DEFAULT_ROOT LlamaGrammar
        NON_LITERAL_SET PRIMITIVE_RULES RESERVED_NAMES SPACE_RULE STRING_FORMAT_RULES
        SchemaConverter json_schema_to_gbnf
    """,
    "llama_speculative": """
        LlamaDraftModel LlamaPromptLookupDecoding
    """,
    "llama_tokenizer": """
        BaseLlamaTokenizer LlamaHFTokenizer LlamaTokenizer
    """,
    "llama_types": """
        ChatCompletion ChatCompletionChoice ChatCompletionChunk ChatCompletionChunkChoice
        ChatCompletionChunkDelta ChatCompletionChunkDeltaEmpty ChatCompletionFunction
        ChatCompletionFunctionCall ChatCompletionFunctionCallOption ChatCompletionFunctions
        ChatCompletionLogprobToken ChatCompletionLogprobs ChatCompletionMessage
        ChatCompletionMessageToolCall ChatCompletionMessageToolCallChunk
        ChatCompletionMessageToolCallChunkFunction ChatCompletionMessageToolCallFunction
        ChatCompletionNamedToolChoice ChatCompletionNamedToolChoiceFunction
        ChatCompletionRequestAssistantMessage
        ChatCompletionRequestAssistantMessageFunctionCall
        ChatCompletionRequestFunctionCallOption ChatCompletionRequestFunctionMessage
        ChatCompletionRequestMessageContentPartImage
        ChatCompletionRequestMessageContentPartImageImageUrl
        ChatCompletionRequestMessageContentPartText ChatCompletionRequestResponseFormat
        ChatCompletionRequestSystemMessage ChatCompletionRequestToolMessage
        ChatCompletionRequestUserMessage ChatCompletionResponseChoice
        ChatCompletionResponseFunction ChatCompletionResponseFunctionCall
        ChatCompletionResponseMessage ChatCompletionStreamResponse
        ChatCompletionStreamResponseChoice ChatCompletionStreamResponseDelta
        ChatCompletionStreamResponseDeltaEmpty ChatCompletionStreamResponseDeltaFunctionCall
        ChatCompletionTool ChatCompletionToolFunction ChatCompletionTopLogprobToken Completion
        CompletionChoice CompletionChunk CompletionLogprobs CompletionUsage
        CreateChatCompletionResponse CreateChatCompletionStreamResponse
        CreateCompletionResponse CreateCompletionStreamResponse CreateEmbeddingResponse
        Embedding EmbeddingData EmbeddingUsage
    """,
}
