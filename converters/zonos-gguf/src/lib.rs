//! GGUF files and their block formats.
