"""The instrument: a study is designed, run, kept, analysed and shown. All substrates are measured by the same hands."""
