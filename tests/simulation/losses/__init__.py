"""What each ablation puts in the place of a check, by the letter of its rule."""
