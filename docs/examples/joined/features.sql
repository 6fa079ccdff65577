-- 320 samples: 8 numbers each, and which of 3 kinds it is.
CREATE TABLE features AS
SELECT id,
  ARRAY(SELECT sin(id % 3 + n) + cos(id * n) FROM generate_series(1, 8) AS n) AS numbers,
  id % 3 AS kind
FROM generate_series(0, 319) AS id;
ALTER TABLE features ADD PRIMARY KEY (id);
