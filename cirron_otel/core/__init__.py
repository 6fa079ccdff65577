"""Everything that neither records nor receives: records, translation, spool, delivery, analysis.

No module here opens a listening socket, starts a framework or imports another wing.
"""
