"""The paper's tables: its figures, the runs behind them, and ours beside them."""
