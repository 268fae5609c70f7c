"""Grammars under the name of llama-cpp-python's module, and some in GBNF to begin with."""

from .text.grammar import LlamaGrammar

__all__ = [
    "ARITHMETIC_GBNF",
    "JSON_ARR_GBNF",
    "JSON_GBNF",
    "LIST_GBNF",
    "LLAMA_GRAMMAR_DEFAULT_ROOT",
    "LlamaGrammar",
]

LLAMA_GRAMMAR_DEFAULT_ROOT = "root"

_JSON_VALUES = r"""
value  ::= object | array | string | number | "true" | "false" | "null"
object ::= "{" ws ( member ( "," ws member )* )? "}"
member ::= string ws ":" ws value ws
array  ::= "[" ws ( value ws ( "," ws value ws )* )? "]"
string ::= "\"" ( [^"\\\x00-\x1F\x7F] | "\\" ( ["\\/bfnrt] | "u" hex hex hex hex ) )* "\""
hex    ::= [0-9a-fA-F]
number ::= "-"? ( "0" | [1-9] [0-9]{0,15} ) ( "." [0-9]+ )? ( [eE] [-+]? [0-9]{1,3} )?
ws     ::= "" | " " | "\n" [ \t]{0,20}
"""

# Any JSON object.
JSON_GBNF = "root ::= object\n" + _JSON_VALUES
# Any JSON array.
JSON_ARR_GBNF = "root ::= array\n" + _JSON_VALUES
# Lines that begin with "- ".
LIST_GBNF = r"""
root ::= ( "- " [^\r\n\x0b\x0c\x85\u2028\u2029]+ "\n" )+
"""
# Equations, one a line: terms of names, whole numbers and parentheses.
ARITHMETIC_GBNF = r"""
root ::= ( sum "=" ws sum "\n" )+
sum  ::= term ( [-+*/] ws term )*
term ::= ( name | [0-9]+ | "(" ws sum ")" ) ws
name ::= [a-z] [a-z0-9_]*
ws   ::= [ \t]*
"""
