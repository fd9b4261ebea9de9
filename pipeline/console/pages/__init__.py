"""The pages of the console: what each of them shows of the state, as sections; pure."""
