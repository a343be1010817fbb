"""Text to tokens and back, chat templates, and whether two vocabularies agree.

This package knows no models. Importing it imports neither torch nor transformers. Invariant: ids are those of the
model's own `tokenizer.json`, from whatever file the tokenizer was built.
"""

from outrider.models.tokenizer.chat import ChatTemplate
from outrider.models.tokenizer.stream import TextStream
from outrider.models.tokenizer.tokenizer import SpecialTokens, Tokenizer
from outrider.models.tokenizer.vocabulary import SharedVocabulary, same_vocabulary

__all__ = ["ChatTemplate", "SharedVocabulary", "SpecialTokens", "TextStream", "Tokenizer", "same_vocabulary"]
