"""Who and what there is besides agents and conversations: one log per entity, one code for all kinds."""
