"""The values that flow between the stages: frozen Structs without behaviour. Imports errors only."""
