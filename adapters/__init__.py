"""Makes, measures and packages LoRA adapters. Imports serving and prompts; nothing imports this room back."""
