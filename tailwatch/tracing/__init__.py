"""Ring files of the recorder, and what is written from them: Perfetto, Chrome, merged with others' traces."""
